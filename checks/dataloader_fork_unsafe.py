"""A DataLoader worker was forked from a process that is unsafe to fork.

A forked worker has the memory of its parent, but only one of its threads. CUDA does not work after
a fork. A lock that another thread held at the fork (OpenCV, OpenMP, a thread pool, a tokenizer, a
logger) is never released in the worker. The worker waits for the lock, and the training process
waits for the worker.

Symptoms: "Cannot re-initialize CUDA in forked subprocess", or a run that hangs before its first
batch, only sometimes, and never with ``num_workers=0``.

To fix it, return CPU tensors from the dataset, set ``multiprocessing_context="forkserver"`` in the
DataLoader, and use no threads before the fork.
"""

# Above 150 lines: refused, dead and standing workers look different, also in a log.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings, log_events
from ddoctor.analysis.loader_workers import start_workers_with
from ddoctor.analysis.script_source import (
    LOADER,
    batches_on_cuda,
    shown,
    started_workers,
)
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "dead-rank",
    "first-failure-masked",
    "rank-stuck-outside-collective",
    "dataloader-worker-deadlock",
    "script-error",
)

# torch/cuda/__init__.py; the second is the error of the driver, if torch did not notice.
REFUSED = re.compile(
    r"Cannot re-initialize CUDA in forked subprocess"
    r"|DataLoader worker.*CUDA error: initialization error",
    re.IGNORECASE | re.DOTALL,
)
# torch/utils/data/_utils/signal_handling.py
CRASHED = re.compile(r"DataLoader worker .* is killed by signal: (Segmentation fault|Aborted)")
# Where the main thread waits for a worker (torch/utils/data/dataloader.py).
WAITS_FOR_WORKER = ("_try_get_data", "_get_data")


def refused_by_cuda(run: TrainingRun) -> Iterator[Finding]:
    found = run.raised(REFUSED)
    if found:
        first = found[0]
        place = endings.place(first.place)
        yield _finding(
            run,
            found,
            Confidence.CERTAIN,
            f"a DataLoader worker of {endings.ranks([first.rank])} used CUDA, but was forked from "
            f"a process that uses CUDA{f', in the loop at {place}' if place else ''}",
            _ON_THE_CPU,
            _FORKSERVER,
        )


def worker_died(run: TrainingRun, loading: Loading | None) -> Iterator[Finding]:
    found = [one for one in run.raised(CRASHED) if _forks(one, loading)]
    if found:
        yield _finding(
            run,
            found,
            Confidence.POSSIBLE,
            f"a forked DataLoader worker of rank {found[0].rank} died in native code "
            f"({found[0].words}); a run with spawned workers would confirm the cause",
            _FORKSERVER,
            _WITHOUT_THREADS,
        )


def worker_stands_still(run: TrainingRun, loading: Loading | None) -> Iterator[Finding]:
    """Forked workers never delivered a batch: they wait for a lock of the parent."""
    found = [
        one
        for one in run.ranks
        if one.outcome == "hung"
        and one.steps == 0
        and any(frame.bare in WAITS_FOR_WORKER for frame in one.stack)
        and not any(loader.taken or loader.collated for loader in _loaders(one, loading))
        and _forks(one, loading)
    ]
    if found:
        first = found[0]
        yield _finding(
            run,
            found,
            Confidence.LIKELY,
            f"rank {first.rank} waited {first.doing_seconds:.0f} s for the first batch of forked "
            f"DataLoader workers{endings.at(first.place)}, and none arrived; py-spy dump "
            "--native of a worker would show the lock",
            _WITHOUT_THREADS,
            _FORKSERVER,
        )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("forked-cuda"):
        yield log_events.finding(
            [event],
            "a worker of a DataLoader, or another forked process, uses CUDA",
            Fix.python(
                summary="leave CUDA to the main process, or start workers by spawn",
                paste='DataLoader(..., multiprocessing_context="spawn")\n'
                "sample = sample.to(device)  # in the training loop, not in the dataset",
            ),
        )


def cuda_in_the_workers(script: Script, launch: Launch | None) -> Iterator[Finding]:
    """A dataset or a collate function uses the GPU, in workers that are forked."""
    starts = script.of("torch.multiprocessing.set_start_method", "multiprocessing.set_start_method")
    if any(one.argument("method", 0) != "'fork'" for one in starts):
        return
    for loader in script.of(LOADER):
        used, count = batches_on_cuda(loader, script), started_workers(loader, launch) or 0
        context = loader.argument("multiprocessing_context", 11) or "'fork'"
        if used is not None and count and context == "'fork'" and "**" not in loader.keywords:
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(used)} uses CUDA in the {count} workers of "
                    f"{shown(loader.at)}, which are forked from a process that uses CUDA"
                ),
                fixes=(_ON_THE_CPU, _FORKSERVER),
            )
            return


def processes_after_cuda(script: Script) -> Iterator[Finding]:
    """A process that is forked from one that has used CUDA cannot use it."""
    for one in script.forks:
        fails = one.child is not None
        then = f"{shown(one.child)} fails there" if one.child else "the child fails if it uses CUDA"
        yield Finding(
            severity=Severity.WARNING if fails else Severity.NOTE,
            confidence=Confidence.LIKELY if fails else Confidence.POSSIBLE,
            because=f"{shown(one.at)} forks this process after {shown(one.before)} has used CUDA: "
            f"{then}",
            fixes=(_SPAWN,),
        )
        return


def _loaders(one: RankEnding, loading: Loading | None) -> Sequence[Loader]:
    return loading.with_workers(one.rank) if loading is not None else ()


def _forks(one: RankEnding, loading: Loading | None) -> bool:
    """Whether the workers are forked; without loader data, fork is the default on Linux."""
    loaders = _loaders(one, loading)
    return not loaders or any(loader.context == "fork" for loader in loaders)


def _finding(
    run: TrainingRun,
    found: Sequence[RankEnding],
    confidence: Confidence,
    because: str,
    *fixes: Fix,
) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        confidence=confidence,
        because=because,
        evidence=(
            Observation(name="outcome", value=found[0].outcome),
            Observation(name="last message", value=found[0].words),
        ),
        where=Where.of(found, every=run.ranks),
        fixes=fixes,
    )


_ON_THE_CPU = Fix.python(
    summary="return CPU tensors from the dataset, and copy the batch in the training loop",
    paste=(
        "# in __getitem__ and collate_fn: no .cuda(), no .to(device), no default device\n"
        "for batch in DataLoader(…, pin_memory=True):\n"
        "    batch = batch.to(device, non_blocking=True)"
    ),
)
_SPAWN = Fix.python(
    summary="start processes by spawn, or before CUDA is used",
    paste='processes = multiprocessing.get_context("spawn")\nprocesses.Process(target=…).start()',
    caution="spawn imports the script again: keep what trains behind `if __name__ == …`",
)
_FORKSERVER = start_workers_with("forkserver")
_WITHOUT_THREADS = Fix.python(
    summary="use no threads before the fork, and none in the workers",
    paste=(
        "cv2.setNumThreads(0)  # before the DataLoader is made, where OpenCV is used\n"
        'os.environ["TOKENIZERS_PARALLELISM"] = "false"  # where tokenizers are used\n'
        "# thread pools and clients (HTTP, databases): make them in the worker, at first use"
    ),
)
