"""`ddoctor probe`: the hosts join within --join-timeout, then each starts torchrun."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Sequence
from importlib.util import find_spec

from ddoctor import engine
from ddoctor.cluster import rendezvous
from ddoctor.cluster.endpoint import Endpoint, TorchrunOptions, arranged
from ddoctor.cluster.rendezvous import HostsMissing
from ddoctor.collect import collect, with_absent
from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Evidence
from ddoctor.options import words
from ddoctor.probing import catalog, sweep_request
from ddoctor.probing.options import ProbeOptions
from ddoctor.proc import processes
from ddoctor.report.output import STDOUT, Outputs, progress

TAG = "DDOCTOR_PROBE"
"""Environment variable that identifies all processes of one start."""

RANKS_WITHOUT_GPU = 2
# Time for rank 0 to write the report.
GRACE_SECONDS = 20.0


def start(torchrun: TorchrunOptions, options: ProbeOptions) -> int:
    """Join the other hosts and run torchrun; return its exit code.

    Raises:
        DoctorError: the options do not match, or another host writes the report.
    """
    sweep_request.asked(options, catalog.choose(options.probes or catalog.usual()))
    endpoint = arranged(torchrun, options.join_timeout)
    if endpoint is None or endpoint.host_it:
        options.outputs()
    if find_spec("torch") is None:
        raise DoctorError("torch is not installed here: use the environment of the training")
    try:
        place = _join(endpoint) if endpoint is not None else ["--standalone"]
        return _torchrun(place, torchrun.nproc_per_node, words(ProbeOptions, options))
    except HostsMissing as apart:
        return _report(apart, options)


def _join(endpoint: Endpoint) -> list[str]:
    """The options of torchrun on this host, once all hosts have joined."""
    with progress() as started:
        started(f"waiting for {endpoint.hosts} hosts at {endpoint}")
        number = rendezvous.gather(endpoint)
    return [
        f"--nnodes={endpoint.hosts}",
        f"--node-rank={number}",
        f"--master-addr={endpoint.address}",
        f"--master-port={endpoint.port}",
        f"--rdzv-id={endpoint.run}",
    ]


def _report(apart: HostsMissing, options: ProbeOptions) -> int:
    """Report a failed rendezvous and the settings of this host."""
    with progress() as started:
        collected = collect(lambda label: started(f"reading {label}"))
        evidence = Evidence(with_absent((*apart.sections, *collected), socket.gethostname()))
    report = engine.examine(evidence, "probe")
    if apart.first:
        options.outputs().write(report, evidence)
    else:
        # Only the first host writes files: their folder may be shared.
        Outputs(json=STDOUT if options.json == STDOUT else None).write(report, evidence)
    return report.exit_code


def _torchrun(place: Sequence[str], ranks: str | None, rest: Sequence[str]) -> int:
    from ddoctor.probing.world import usable_gpus
    from ddoctor.proc.parent import end_with_parent

    count = ranks or usable_gpus() or RANKS_WITHOUT_GPU
    tag = uuid.uuid4().hex
    # PET_… are torchrun's own options, set by an outer launcher, say a Kubernetes operator.
    outer = ("PET_", "TORCHELASTIC_")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(outer)}
    # A queue.py in the user's folder must not be imported instead of Python's own.
    environment |= {TAG: tag, "PYTHONSAFEPATH": "1"}
    torchrun = [sys.executable, "-m", "ddoctor.cluster.agent", *place, f"--nproc-per-node={count}"]
    try:
        agent = subprocess.Popen(
            [*torchrun, "-m", "ddoctor.probe", *rest],
            env=environment,
            stdin=subprocess.DEVNULL,
            # ddoctor receives Ctrl-C, and then ends the process tree cleanly.
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        code = agent.wait()
    finally:
        processes.end(GRACE_SECONDS, **{TAG: tag})
    if code < 0:
        raise DoctorError(f"torchrun was killed by {signal.Signals(-code).name}")
    return code
