"""`ddoctor probe`: the hosts join first, within a limit; then each of them starts torchrun."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec

from ddoctor import engine
from ddoctor.cluster import rank, rendezvous
from ddoctor.cluster.endpoint import Endpoint, Parser, arranged, launcher
from ddoctor.cluster.rendezvous import HostsMissing
from ddoctor.collect import collect
from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle
from ddoctor.evidence.section import Absence, Absent, Evidence, Section
from ddoctor.probing import catalog, sweep_request
from ddoctor.proc import processes
from ddoctor.report.output import STDOUT, Outputs, progress

MARK = "DDOCTOR_PROBE"
"""The environment variable that all processes of one start carry."""

RANKS_WITHOUT_GPU = 2
# Rank 0 still writes the report of what was measured.
GRACE_SECONDS = 20.0
EPILOG = (
    "Run the same line on each host. All hosts meet at the endpoint within --join-timeout, or a "
    "report says who is missing; then torchrun is started on each with these numbers. Without "
    "--nnodes this host alone is examined."
)


def enter(words: Sequence[str]) -> int:
    """Join the other hosts, start torchrun; its exit code.

    Raises:
        DoctorError: what was asked for makes no run, or another host has the report.
    """
    spelt = [re.sub(r"^--[^=]+", lambda found: found[0].replace("_", "-"), one) for one in words]
    options = launcher()
    parser = Parser(
        prog="ddoctor probe",
        description="Examine all hosts of a run before it starts, and report on the first.",
        epilog=EPILOG,
        parents=[options, rank.parser()],
        conflict_handler="resolve",
        allow_abbrev=False,
    )
    if {"-h", "--help"} & set(spelt):
        print(parser.format_help(), end="")
        return 0
    arguments = parser.parse_intermixed_args(spelt)
    sweep_request.asked(arguments, catalog.choose(arguments.probes or catalog.usual()))
    meeting = arranged(arguments)
    if meeting is None or meeting.host_it:
        _outputs(arguments)
    if find_spec("torch") is None:
        raise DoctorError("torch is not installed here: use the run's own environment")
    try:
        place = _join(meeting) if meeting is not None else ["--standalone"]
        # What is left is for the probe.
        _, rest = options.parse_known_args(spelt)
        return _torchrun(place, arguments, rest)
    except HostsMissing as apart:
        return _report(apart, arguments)
    except KeyboardInterrupt:
        raise DoctorError("interrupted") from None


def _join(meeting: Endpoint) -> list[str]:
    """Torchrun's words for the place of this host, once all have come."""
    with progress() as started:
        started(f"waiting for {meeting.hosts} hosts at {meeting.endpoint}")
        number = rendezvous.gather(meeting)
    return [
        f"--nnodes={meeting.hosts}",
        f"--node-rank={number}",
        f"--master-addr={meeting.address}",
        f"--master-port={meeting.port}",
        f"--rdzv-id={meeting.run}",
    ]


def _outputs(arguments: Namespace) -> Outputs:
    return Outputs(
        json=arguments.json,
        markdown=arguments.markdown,
        html=arguments.html,
        bundle=arguments.bundle,
        hosts=arguments.hosts,
    )


def _report(apart: HostsMissing, arguments: Namespace) -> int:
    """What is known of a meeting that failed, with what is to be seen on this host."""
    found = list(apart.sections)
    absences: list[Absence] = []
    with progress() as started:
        for outcome in collect(lambda label: started(f"looking at {label}")):
            if isinstance(outcome, Section):
                found.append(outcome)
            else:
                absences.append(outcome)
    found.append(Absent(host=socket.gethostname(), sections=tuple(absences)))
    evidence = Evidence(found)
    report = engine.examine(evidence, "probe")
    if apart.first:
        if arguments.bundle is not None:
            bundle.write(arguments.bundle, evidence)
        _outputs(arguments).write(report, evidence)
    else:
        # Files are the first host's: their folder may be a shared one.
        Outputs(json=STDOUT if arguments.json == STDOUT else None).write(report, evidence)
    return report.exit_code


def _torchrun(place: Sequence[str], arguments: Namespace, rest: Sequence[str]) -> int:
    from ddoctor.probing.world import usable_gpus
    from ddoctor.proc.parent import end_with_parent

    ranks = arguments.nproc_per_node or usable_gpus() or RANKS_WITHOUT_GPU
    mark = uuid.uuid4().hex
    # PET_… are torchrun's own options, set by an outer launcher, say a Kubernetes operator.
    outer = ("PET_", "TORCHELASTIC_")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(outer)}
    # A queue.py in the user's folder must not be imported in place of Python's own.
    environment |= {MARK: mark, "PYTHONSAFEPATH": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", *place, f"--nproc-per-node={ranks}"]
    try:
        agent = subprocess.Popen(
            [*torchrun, "-m", "ddoctor.probe", *rest],
            env=environment,
            stdin=subprocess.DEVNULL,
            # Ctrl-C in the terminal is for ddoctor, which then ends the tree in order.
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        code = agent.wait()
    finally:
        processes.end(GRACE_SECONDS, **{MARK: mark})
    if code < 0:
        raise DoctorError(f"torchrun was ended by {signal.Signals(-code).name}")
    return code
