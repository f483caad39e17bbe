"""A rank waits for the lock of an extension build that no process runs any more.

torch compiles an extension at its first load (``torch.utils.cpp_extension.load``, the operators of
DeepSpeed). A file named ``lock`` in the build folder keeps other processes out meanwhile. The file
outlives its process: a build that is killed, for memory or with its job, leaves it behind. Then
each later run waits for it silently and forever.

Symptoms: nothing moves before the first step, no compiler runs, and the stack ends in
``file_baton.py``. Once the file is deleted, the run continues.

To fix it, delete the lock file, and build the extension once before the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.live_ranks import subject, way_there
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.live import BuildLocks
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "rank-stuck-outside-collective",
    "late-rank-timeout",
    "rank-missing-at-init",
    "straggler-rank",
    "rank0-extra-work",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)

WAITS, BUILDS = "torch/utils/file_baton.py", "_jit_compile"
# The largest extensions built at first use, those of DeepSpeed, take some minutes. In a shared
# folder, another host may still build.
AN_HOUR = 3600.0
LAST_LINES = 3
"""Lines at the end of a log that count as its last."""


def in_a_live_run(live: LiveState, locks: tuple[BuildLocks, ...] | None) -> Iterator[Finding]:
    waiting = [
        rank for rank in live.ranks if any(frame.file.endswith(WAITS) for frame in rank.seen.stack)
    ]
    rest = [rank for rank in live.ranks if rank not in waiting]
    if not waiting or any(frame.function == BUILDS for rank in rest for frame in rank.seen.stack):
        return
    known = [lock for section in locks or () for lock in section.locks]
    stale = [lock for lock in known if lock.holder is None]
    # A lock that a process of this host holds is a build in progress; a lock in another folder is
    # not seen.
    if not stale and (known or not live.whole):
        return
    oldest = max((lock.age_seconds for lock in stale), default=0.0)
    confidence = Confidence.LIKELY if stale else Confidence.POSSIBLE
    wait = "wait" if len(waiting) > 1 else "waits"
    whose = (
        f"no process of this host holds {stale[0].path}, created {_ago(oldest)} ago"
        if stale
        else "no rank of this run builds it"
    )
    yield Finding(
        severity=Severity.ERROR if stale else Severity.WARNING,
        confidence=Confidence.CERTAIN if oldest > AN_HOUR else confidence,
        because=(
            f"{subject(waiting)} {wait} {waiting[0].where} for the build of an extension, but "
            f"{whose}{live.others(waiting)}"
        ),
        evidence=tuple(
            Observation(
                name=lock.path,
                value=round(lock.age_seconds),
                unit="s old",
                source="a build keeps this file open; no process of this host does",
            )
            for lock in stale
        ),
        where=Where.of(waiting, every=live.ranks),
        fixes=(
            Fix(
                summary="delete the lock, and the run continues",
                paste=" ".join(["rm", *(lock.path for lock in stale)])
                if stale
                else "find ~/.cache/torch_extensions $TORCH_EXTENSIONS_DIR -name lock -delete",
                caution="not while another host builds in the same folder",
            ),
            Fix(
                summary="build once before the run, in a separate folder for this environment",
                paste=(
                    "export TORCH_EXTENSIONS_DIR=$HOME/.cache/torch_extensions-$(hostname)\n"
                    "python -c 'import the_extension'  # on one process of each host"
                ),
            ),
            *way_there(waiting[0]),
        ),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    locks, loads = log.of("extension-lock"), log.of("extension-loading")
    # What follows a load shows that it ended.
    loaded = max((one.last for one in log.of("extension-loaded")), default=0)
    stands = bool(loads) and loads[-1].last >= max(log.lines - LAST_LINES, loaded)
    if locks or stands:
        yield log_events.finding(
            locks or loads[-1:],
            "it waits for the lock of a build that another process left behind"
            if locks
            else "the log ends while an extension is loaded: a lock may have been left behind",
            Fix(
                summary="delete the folder of the build, and start once with one process",
                paste='rm -rf "${TORCH_EXTENSIONS_DIR:-$HOME/.cache/torch_extensions}"',
                caution="not while another run builds there",
            ),
            confidence=Confidence.LIKELY if locks else Confidence.POSSIBLE,
        )


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 2 * AN_HOUR else f"{seconds / 3600:.0f} hours"
