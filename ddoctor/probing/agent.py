"""`python -m ddoctor.probing.agent`: torchrun with one rank per GPU, or two on gloo without.

It is a process of its own, because only torch knows which GPUs it sees and importing it takes
seconds, and because torchrun tells its caller, and nobody else, how each rank ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import msgspec

from ddoctor.proc import cgroup
from ddoctor.proc.parent import end_with_parent

CREW_FILE = "crew.json"
EXITS_FILE = "exits.json"

RANKS_WITHOUT_GPU = 2


class StartedRanks(msgspec.Struct, frozen=True, kw_only=True):
    """How many ranks were started, and on what."""

    ranks: int
    backend: str


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that ended by its own failure: its exit code, or minus the signal that killed it."""

    rank: int
    code: int


def main() -> int:
    """Start the ranks, wait for them, and write down which of them failed."""
    end_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("probes", nargs="+")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--force", action="store_true")
    arguments = parser.parse_args()

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    from ddoctor.probing.gpu_users import occupied
    from ddoctor.probing.world import usable_gpus

    count = usable_gpus()
    gpus_in_use = occupied() if count and not arguments.force else ""
    if gpus_in_use:
        crew = StartedRanks(ranks=1, backend="gloo")
    elif count:
        crew = StartedRanks(ranks=count, backend="nccl")
    else:
        crew = StartedRanks(ranks=RANKS_WITHOUT_GPU, backend="gloo")
    _write(arguments.folder / CREW_FILE, crew)
    # torchrun would set it to 1, which no sensible run uses.
    threads = max(1, int(_cpus() / crew.ranks))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    try:
        torchrun(
            [
                "--standalone",
                # Not the host name: a wrong one is a finding of its own, not a reason to hang here.
                "--local-addr=127.0.0.1",
                f"--nproc-per-node={crew.ranks}",
                "--max-restarts=0",
                "--redirects=3",
                f"--log-dir={arguments.folder / 'output'}",
                "--module",
                "ddoctor.probing.worker",
                f"--folder={arguments.folder}",
                f"--data={arguments.data}",
                f"--gpus-in-use={gpus_in_use}",
                *arguments.probes,
            ]
        )
    except ChildFailedError as error:
        exits = [Exit(rank=rank, code=one.exitcode) for rank, one in error.failures.items()]
        # When one has failed, torchrun itself ends the others by this signal.
        own = [one for one in exits if one.code != -signal.SIGTERM]
        _write(arguments.folder / EXITS_FILE, own or exits)
        return 1
    return 0


def _cpus() -> float:
    """CPUs that these processes can keep busy."""
    allowed = len(os.sched_getaffinity(0))
    groups = cgroup.controller("cpu")
    quota = cgroup.quota(groups) if groups is not None else None
    return allowed if quota is None else min(allowed, quota.cpus)


def _write(path: Path, content: object) -> None:
    """So that a reader sees all of it or nothing."""
    draft = path.with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(content))
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
