"""Several ranks make, move or delete the same file at the same moment.

All ranks run the same lines: a folder for checkpoints, a download, a cache, a last step that
renames what was written under a name for the time being. On one machine, or on a file system that
several hosts share, the first rank does it, and the next finds a folder that is there already, or a
file that is gone. It depends on microseconds, so the same script mostly works.

Seen from outside: "File exists", "No such file or directory" or "Directory not empty" on some of
the ranks, at a line that makes, moves or deletes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings
from ddoctor.evidence.training import Frame, RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked")

# What the kernel answers when another one was there first, errno(3).
MADE = re.compile(r"\[Errno (17|39)\]")  # EEXIST, ENOTEMPTY
GONE = re.compile(r"\[Errno 2\]")  # ENOENT
MAKES = re.compile(r"\b(mkdir|makedirs|symlink|link|rename|replace|move|rmtree|rmdir|copytree)\b")
# To open a file that was never there is another matter.
TAKES = re.compile(r"\b(rename|renames|replace|move|rmtree|unlink|remove|removedirs|rmdir)\b")
# The library's own frames below the user's line, say of shutil.
INNERMOST = 3


def from_training(run: TrainingRun) -> Iterator[Finding]:
    late = [one for one in run.failures if _came_late(one)]
    # Where it hits all of them, it was so before they began.
    if late and (len(late) < len(run.ranks) or run.log):
        yield _finding(run, late)


def _came_late(one: RankEnding) -> bool:
    words = " ".join(f"{frame.function} {frame.text}" for frame in _innermost(one.stack))
    return bool(
        (MADE.search(one.message) and MAKES.search(words))
        or (GONE.search(one.message) and TAKES.search(words))
    )


def _innermost(stack: Sequence[Frame]) -> Sequence[Frame]:
    return stack[-INNERMOST:]


def _finding(run: TrainingRun, late: Sequence[RankEnding]) -> Finding:
    first = late[0]
    text = endings.quoted(first.place)
    subject = endings.who(first) if len(late) == 1 else endings.ranks(one.rank for one in late)
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{subject} raised {first.words} at {endings.place(first.place)}{text}, "
            f"{endings.when(run, first)}: another rank did the same just before"
            f"{endings.others(run, late)}"
        ),
        evidence=tuple(
            Observation(name=f"error of rank {one.rank}", value=one.words) for one in late[:4]
        ),
        where=Where(
            hosts=tuple(sorted({one.host for one in late})),
            ranks=tuple(one.rank for one in late),
        ),
        fixes=(
            Fix(
                summary="let one rank do it, and the others wait",
                paste=(
                    "if torch.distributed.get_rank() == 0:\n"
                    f"    {first.place.text if first.place is not None else '...'}\n"
                    "torch.distributed.barrier()"
                ),
                language="python",
                caution="on file systems that hosts do not share: one rank of each host",
            ),
            Fix(
                summary="where all have to do it: let it be there already, and work in a name of "
                "the rank's own",
                paste=(
                    "os.makedirs(path, exist_ok=True)\n"
                    'working = f"{path}.{torch.distributed.get_rank()}"'
                ),
                language="python",
            ),
        ),
    )
