"""Run probes on this host alone: one rank per GPU, or two gloo ranks without GPUs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec

from ddoctor.cluster.measurement import Limits
from ddoctor.cluster.probe_series import ProbeSeries, skipped
from ddoctor.cluster.store import ClusterStore, MemoryStore, Order, RankInfo, free_port
from ddoctor.collect import host
from ddoctor.evidence.probes import ProbeRun, ProbeRuns
from ddoctor.evidence.section import Section
from ddoctor.probing.gpu_users import UsableGpus
from ddoctor.proc import processes
from ddoctor.proc.folder import without_room

# Probes stop within 8 s; a loaded machine may need longer.
PROBE_LIMIT_SECONDS = 15.0
# Measuring the rest of the probes takes another import of torch.
RELAUNCH_SECONDS = 10.0
GRACE_SECONDS = 2.0

TAG = "DDOCTOR_GPU_USERS"
"""Environment variable of the process that finds the usable GPUs."""

RANKS_WITHOUT_GPU = 2
# Device files of NVIDIA, NVIDIA in WSL, and AMD: torch sees no GPU if all are missing.
GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
# Not the host's name: if it does not resolve, that is a finding and must not block the probes.
LOOPBACK = "127.0.0.1"


class _CannotStart(Exception):
    """The ranks cannot start; holds the outcome of the first probe and the reason."""


def measure(
    names: Sequence[str],
    *,
    limit: float,
    data: Path,
    force: bool = False,
    started: Callable[[str], None] = lambda name: None,
) -> tuple[Section, ...]:
    """Run probes on every GPU of this host, or on two CPU ranks, within ``limit`` seconds.

    A name with a dot is a module of the user. Returns all measurements in any case: a probe that
    hangs or crashes is ended, and the others run in new processes. Ctrl-C ends all processes, and
    the rest of the probes count as interrupted.
    """
    deadline = time.monotonic() + limit
    ranks: list[RankInfo] = []
    series = ProbeSeries(ClusterStore(MemoryStore(), LOOPBACK), ranks, ranks)
    backend = ""
    try:
        if why := without_room() or _without_loopback():
            raise _CannotStart("crashed", why)
        gpus = _usable_gpus(deadline)
        in_use = "" if force else gpus.in_use
        backend = "nccl" if gpus.count and not in_use else "gloo"
        size = 1 if in_use else gpus.count or RANKS_WITHOUT_GPU
        ranks += [
            RankInfo(rank=rank, local_rank=rank, local_size=size, world_size=size, address=LOOPBACK)
            for rank in range(size)
        ]

        def order(probes: Sequence[str]) -> Order:
            environment = {
                # Rank 0 opens the store.
                "TORCHELASTIC_USE_AGENT_STORE": "False",
                "MASTER_PORT": str(free_port()),
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", _threads(size)),
            }
            return Order(
                kind="measure", probes=tuple(probes), gpus_in_use=in_use, environment=environment
            )

        limits = Limits(deadline=deadline, probe=PROBE_LIMIT_SECONDS, relaunch=RELAUNCH_SECONDS)
        series.measure(names, order, data, limits, started)
    except _CannotStart as error:
        series.runs.append(ProbeRun(probe=names[0], outcome=error.args[0], reason=error.args[1]))
        series.runs += skipped(names[1:], f"the ranks could not start, see {names[0]}")
    except KeyboardInterrupt:
        missing = names[len(series.runs) :]
        series.runs += [ProbeRun(probe=name, outcome="interrupted") for name in missing]
    ending = ProbeRuns(runs=tuple(series.runs), backend=backend, world_size=len(ranks))
    sections = (*series.sections, ending)
    return tuple(
        msgspec.structs.replace(section, host=socket.gethostname()) for section in sections
    )


def _without_loopback() -> str:
    """Why the ranks cannot reach each other on this host, and what to do; empty: they can."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), GRACE_SECONDS).close()
    except OSError as error:
        return f"{LOOPBACK} cannot be used ({error.strerror}): run `ip link set lo up` as root"
    return ""


def _usable_gpus(deadline: float) -> UsableGpus:
    if find_spec("torch") is None:
        why = "torch is not installed here: pip install torch, or use the training's environment"
        raise _CannotStart("crashed", why)
    if not any(map(os.path.exists, GPU_DEVICES)):
        return UsableGpus(count=0, in_use="")
    tag = {TAG: uuid.uuid4().hex}
    process = subprocess.Popen(
        [sys.executable, "-m", "ddoctor.probing.gpu_users"],
        # Python 3.10 imports from the working folder whatever PYTHONSAFEPATH says.
        cwd="/",
        env=os.environ | tag | {"PYTHONSAFEPATH": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        why = "the ranks did not start in time (importing torch from a slow disk?)"
        raise _CannotStart("hung", why) from None
    finally:
        processes.end(0.0, **tag)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    if code := process.returncode:
        lines = [line for line in errors.decode(errors="replace").split("\n") if line.strip()]
        last = lines[-1].strip() if lines else f"exit code {code}"
        raise _CannotStart("crashed", f"torch cannot be imported: {last}")
    return msgspec.json.decode(output.splitlines()[-1], type=UsableGpus)


def _threads(ranks: int) -> str:
    """OMP_NUM_THREADS of each rank: an equal share of the usable CPUs."""
    return str(max(1, int(host.cpus(look_seconds=0.0).usable / ranks)))
