"""A DataLoader worker is deadlocked, and all ranks wait for its batch.

A worker may be forked while another thread holds a lock (OpenMP, OpenCV, a tokenizer, a database).
It then waits for that lock forever. A worker that reads from a dead file system, or waits for
another process, does not return either. By default the main process waits without a timeout.

Symptoms: the run hangs, one rank is in ``_try_get_data`` of the DataLoader, and its workers sleep.

To fix it, start workers with ``spawn``, give each worker one thread, and set ``timeout`` in the
DataLoader.
"""

# Above 150 lines: recorded and live runs, with workers that are blocked, held or gone.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings
from ddoctor.analysis.live_ranks import HELD, WORKS, LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loader_workers import start_workers_with
from ddoctor.evidence.live import LiveWorker
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "late-rank-timeout", "script-error")

# torch/utils/data/dataloader.py, _get_data: raised only where the script sets a timeout.
TIMED_OUT = re.compile(r"DataLoader timed out after (\d+) seconds")


def from_training(run: TrainingRun, loading: Loading | None) -> Iterator[Finding]:
    failed = bool(run.failures)
    for one in run.ranks:
        if TIMED_OUT.search(one.message):
            yield _finding(run, one, loading, "gave up waiting")
        elif not failed and endings.on_workers(one, loading):
            yield _finding(run, one, loading, f"waited for {one.doing_seconds:.0f} s")


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.hung:
        return
    for rank in live.ranks:
        # If a worker computes, the batch is slow, but will arrive.
        computes = any(row.cpu_seconds > WORKS * rank.seconds for row in rank.seen.workers)
        if rank.doing == "loader-wait" and not computes:
            yield _stuck(rank, live)


def _stuck(rank: LiveRankState, live: LiveState) -> Finding:
    stuck = [worker for worker in rank.seen.workers if worker.stuck]
    held = [worker for worker in rank.seen.workers if worker.state in HELD]
    first = next(iter(held or stuck), None)
    because = f"{rank.who} waits for a batch {rank.where}"
    alone = len(rank.seen.workers) == 1
    if held:
        several = f"{len(held)} of its {len(rank.seen.workers)} workers are"
        its = f"its worker (pid {held[0].pid}) is" if alone else several
        because += f", and {its} {HELD[held[0].state]}"
    elif first is not None:
        several = f"{len(stuck)} of its {len(rank.seen.workers)} workers are stuck"
        its = f"its worker (pid {first.pid}) is stuck" if alone else several
        because += f", and {its}{endings.at(first.line)}{endings.quoted(first.line)}"
    elif rank.seen.workers:
        because += ", and none of its workers delivers one"
    elif not live.dumped:
        because += ", and its workers no longer exist"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if first is not None else Confidence.LIKELY,
        because=f"{because}; {live.standstill}{live.others([rank])}",
        evidence=tuple(
            Observation(name=f"state of worker {worker.pid}", value=worker.state)
            for worker in rank.seen.workers
        ),
        where=Where.of([rank]),
        fixes=tuple(_resumed(held, rank.host) if held else _unlocked(stuck)),
    )


def _resumed(held: Sequence[LiveWorker], host: str) -> Iterator[Fix]:
    stopped = " ".join(str(worker.pid) for worker in held if worker.state == "stopped")
    if stopped:
        yield Fix(
            summary="resume the stopped workers",
            paste=f"kill -CONT {stopped}  # on {host}",
            caution="find out first what stopped them, and why",
        )
    yield _WITH_LIMITS


def _unlocked(stuck: Sequence[LiveWorker]) -> Iterator[Fix]:
    for first in stuck[:1]:
        yield Fix(
            summary="find what this line of the worker waits for",
            paste="\n".join(endings.printed(first.stack)),
            language="text",
        )
    yield _WITHOUT_LOCKS
    yield _WITH_LIMITS


def _finding(run: TrainingRun, one: RankEnding, loading: Loading | None, what: str) -> Finding:
    loaders = loading.with_workers(one.rank) if loading is not None else ()
    loader = loaders[0] if len(loaders) == 1 else None
    whose = "its loader workers"
    if loader is not None:
        whose = f"its {loader.num_workers} workers" if loader.num_workers > 1 else "its worker"
        whose += f" ({loader.context}, {loader.dataset})"
    forked = loader is None or loader.context == "fork"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{endings.who(one)} {what} for a batch of {whose}{endings.at(one.place)}, after "
            f"{endings.steps(one)}{endings.others(run, [one])}; the stacks of the workers would "
            "show what blocks them"
        ),
        evidence=()
        if run.only_told
        else (
            Observation(name="steps done", value=one.steps),
            Observation(name="time waited", value=round(one.doing_seconds, 1), unit="s"),
        ),
        where=Where.of([one]),
        fixes=(
            Fix(
                summary="run it again, and dump the stacks of the workers while it hangs",
                paste=(
                    f"{endings.again(run)} &\n"
                    f"pgrep -f {run.script} | xargs -n1 py-spy dump --native --pid"
                ),
                caution="py-spy may need root, or the capability SYS_PTRACE in a container",
            ),
            *([_WITHOUT_LOCKS] if forked else []),
            _WITH_LIMITS,
        ),
    )


_WITHOUT_LOCKS = start_workers_with("spawn")
_WITH_LIMITS = Fix.python(
    summary="give each worker one thread, and set a timeout in the DataLoader",
    paste=(
        "def alone(worker):\n"
        "    torch.set_num_threads(1)\n"
        "    # cv2.setNumThreads(0)   where OpenCV is used\n\n"
        "DataLoader(..., worker_init_fn=alone, timeout=300)"
    ),
)
