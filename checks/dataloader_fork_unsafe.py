"""A DataLoader worker was forked from a process that may not be forked any more.

A forked worker has the memory of its parent, but only one of its threads. CUDA refuses to work in
it. A lock that another thread held in that moment (of OpenCV, OpenMP, a thread pool, a tokenizer, a
logger) is held for ever: the worker waits for it, and the training process waits for the worker.

Seen from outside: "Cannot re-initialize CUDA in forked subprocess", or a run that hangs before its
first batch, sometimes only, and never with ``num_workers=0``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "dead-rank",
    "first-failure-masked",
    "rank-stuck-outside-collective",
    "dataloader-worker-deadlock",
)

# torch/cuda/__init__.py, and what the driver says where torch did not notice.
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
    told = [one for one in run.ranks if one.fell and REFUSED.search(f"{one.message} {one.printed}")]
    if told:
        first = told[0]
        place = endings.place(first.place)
        yield _finding(
            run,
            told,
            Confidence.CERTAIN,
            f"a DataLoader worker of rank {first.rank} used CUDA, and had been forked from a "
            f"process that uses it{f', for the loop at {place}' if place else ''}",
            (_on_the_cpu(), _start_otherwise()),
        )


def worker_died(run: TrainingRun, loading: Loading | None) -> Iterator[Finding]:
    told = [
        one
        for one in run.ranks
        if one.fell and CRASHED.search(f"{one.message} {one.printed}") and _forks(one, loading)
    ]
    if told:
        yield _finding(
            run,
            told,
            Confidence.POSSIBLE,
            f"a forked DataLoader worker of rank {told[0].rank} died in native code "
            f"({told[0].words}); that it does not when started by spawn would settle it",
            (_start_otherwise(), _without_threads()),
        )


def worker_stands_still(run: TrainingRun, loading: Loading | None) -> Iterator[Finding]:
    """No batch has ever come, and the workers were forked: they wait for a lock of the parent."""
    told = [
        one
        for one in run.ranks
        if one.outcome == "hung"
        and one.steps == 0
        and any(frame.function in WAITS_FOR_WORKER for frame in one.stack)
        and not _delivered(one, loading)
        and _forks(one, loading)
    ]
    if told:
        first = told[0]
        place = endings.place(first.place)
        yield _finding(
            run,
            told,
            Confidence.LIKELY,
            f"rank {first.rank} waited {first.doing_seconds:.0f} s for the first batch of forked "
            f"DataLoader workers{f' at {place}' if place else ''}, and none ever came; a dump of a "
            "worker's stack (py-spy dump --native) would show the lock",
            (_without_threads(), _start_otherwise()),
        )


def _loaders(one: RankEnding, loading: Loading | None) -> Sequence[Loader]:
    every = loading.loaders if loading is not None else ()
    return [loader for loader in every if loader.rank == one.rank and loader.num_workers]


def _forks(one: RankEnding, loading: Loading | None) -> bool:
    """Where no loader was seen to the end: the start method that Linux has by default."""
    loaders = _loaders(one, loading)
    return not loaders or any(loader.context == "fork" for loader in loaders)


def _delivered(one: RankEnding, loading: Loading | None) -> bool:
    return any(loader.taken or loader.collated for loader in _loaders(one, loading))


def _finding(
    run: TrainingRun,
    told: Sequence[RankEnding],
    confidence: Confidence,
    because: str,
    fixes: tuple[Fix, ...],
) -> Finding:
    some = len(told) < len(run.ranks)
    return Finding(
        severity=Severity.ERROR,
        confidence=confidence,
        because=because,
        evidence=(
            Observation(name="outcome", value=told[0].outcome),
            Observation(name="last words", value=told[0].words),
        ),
        where=Where(
            hosts=tuple(sorted({one.host for one in told})) if some else (),
            ranks=tuple(one.rank for one in told) if some else (),
        ),
        fixes=fixes,
    )


def _on_the_cpu() -> Fix:
    return Fix(
        summary="return CPU tensors from the dataset, and copy the batch in the training loop",
        paste=(
            "# in __getitem__ and collate_fn: no .cuda(), no .to(device), no default device\n"
            "for batch in DataLoader(…, pin_memory=True):\n"
            "    batch = batch.to(device, non_blocking=True)"
        ),
        language="python",
    )


def _start_otherwise() -> Fix:
    return Fix(
        summary="start the workers anew instead of forking them",
        paste='DataLoader(…, multiprocessing_context="forkserver", persistent_workers=True)',
        language="python",
        caution=(
            "the dataset is pickled to them, their start takes seconds, and the script needs "
            'if __name__ == "__main__":'
        ),
    )


def _without_threads() -> Fix:
    return Fix(
        summary="use no threads before the fork, and none in the workers",
        paste=(
            "cv2.setNumThreads(0)  # before the DataLoader is made, where OpenCV is used\n"
            'os.environ["TOKENIZERS_PARALLELISM"] = "false"  # where tokenizers are used\n'
            "# thread pools and clients (HTTP, databases): make them in the worker, at first use"
        ),
        language="python",
    )
