"""Sentences about how a rank of a training run ended, and what the other ranks did meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import takewhile

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.host import cpu_list
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.steps import PHASES
from ddoctor.evidence.training import TRACEBACK, RankEnding, TrainingRun
from ddoctor.models import Confidence

MOST_CALLERS = 3
ENDED = ("interrupted", "stopped")
MOST_QUOTED = 80
"""Characters of a line."""
# torch/utils/data/dataloader.py: where the main process takes a batch from the workers' queue.
TAKES = "_try_get_data"


def who(one: RankEnding) -> str:
    """A rank, with its process."""
    process = " on ".join(filter(None, (f"pid {one.pid}" if one.pid else "", one.host)))
    rank = f"rank {one.rank}" if one.rank >= 0 else "a rank"
    return f"{rank}{f' ({process})' if process else ''}"


def ranks(numbers: Iterable[int], *, every: Sized = ()) -> str:
    """Return ``rank 3``, ``ranks 0-2, 5``, or ``all ranks`` if they are as many as ``every``."""
    several = sorted(numbers)
    if several[:1] == [-1]:
        return "several ranks" if len(several) > 1 else "a rank"
    if 1 < len(several) == len(every):
        return "all ranks"
    return f"rank{'s' if len(several) > 1 else ''} {cpu_list(several).replace(',', ', ')}"


def steps(one: RankEnding) -> str:
    """The number of its steps, with the unit."""
    return f"{one.steps} step{'' if one.steps == 1 else 's'}"


def when(run: TrainingRun, one: RankEnding) -> str:
    """When it ended: after how many steps, or where a log says so."""
    if one.logged:
        return f"({one.logged})"
    return f"according to {run.log}" if run.log else f"after {steps(one)}"


def place(frame: Frame | None) -> str:
    """The line of a rank, such as ``train.py:30 in main``; empty: not known."""
    if frame is None:
        return ""
    function = "" if frame.function == "<module>" else f" in {frame.function}"
    return f"{frame.file.rpartition('/')[2]}:{frame.line}{function}"


def at(frame: Frame | None) -> str:
    """Return `` at train.py:30``; empty: not known."""
    known = place(frame)
    return f" at {known}" if known else ""


def quoted(frame: Frame | None) -> str:
    """The text of a line, in parentheses after a space; empty: not known."""
    if frame is None or not frame.text:
        return ""
    cut = "…" * (len(frame.text) > MOST_QUOTED)
    return f" (`{frame.text[:MOST_QUOTED]}{cut}`)"


def stood(one: RankEnding, way: str = "") -> str:
    """Where it was last: the operation or phase, and the line, or one of ``ways``."""
    doing = f"{one.doing}" if one.doing and one.doing not in ("waiting", "transfer", "rest") else ""
    if one.doing in PHASES and doing:
        doing = f"the phase {doing}"
    line = way or place(one.place)
    if doing and line:
        return f"in {doing} at {line}"
    return f"in {doing}" if doing else f"at {line}" if line else "somewhere"


def gone_before(run: TrainingRun) -> tuple[RankEnding, ...]:
    """The ranks that finished the script, and whom the others still needed."""
    if run.failures or not run.echoes:
        return ()
    return tuple(one for one in run.ranks if one.outcome == "finished")


def left_alone(run: TrainingRun, gone: Sequence[RankEnding]) -> str:
    """What the others met once these had finished, in words."""
    first = run.echoes[0]
    return (
        f"{ranks(one.rank for one in run.echoes)} failed with '{first.words}' {stood(first)}: "
        f"{ranks(one.rank for one in gone)} had finished the script{at(gone[0].place)} after "
        f"{steps(gone[0])}, and never entered that collective"
    )


def failed_alike(run: TrainingRun) -> tuple[RankEnding, ...]:
    """All ranks, earliest first, if each failed in the same way by itself; empty: they did not.

    A signal comes from outside of the script. A log shows only the ranks that it names.
    """
    failed = run.failures
    if run.log or not failed or len(failed) < len(run.ranks):
        return ()
    first = failed[0]
    alike = first.outcome == "failed" and all(_alike(first, one) for one in failed)
    return failed if alike else ()


def raised_alone(run: TrainingRun) -> bool:
    """Whether a log shows one exception, and no rank that fails because another one is gone.

    A log that names no rank says of none that it is gone.
    """
    failed = run.failures
    if not run.only_told or not failed:
        return False
    if all(one.rank < 0 for one in run.ranks):
        return True
    raised = [one for one in failed if one.exception]
    # Of a rank whose output is missing, the launcher tells the exit code of any exception.
    untold = all(one.exit_code == 1 for one in failed if not one.exception)
    several = len(raised) == len(failed) or len(raised) > 1
    alike = all(_alike(raised[0], one) for one in raised)
    return bool(raised) and several and untold and alike and not run.echoes


def of_several(run: TrainingRun, failed: int) -> str:
    """Which one of several failures it is; empty: there is no other."""
    if failed < 2:
        return ""
    if run.ordered:
        return f", the first of {failed} that failed"
    return f", one of {failed} that failed, and the times in the logs do not say which was first"


def _alike(one: RankEnding, other: RankEnding) -> bool:
    if one.exception != other.exception:
        return False
    # After the exception of one, the launcher may have ended the other during its exit.
    if not one.exception and one.exit_code != other.exit_code:
        return False
    # A message may hold the rank, or a value of its data.
    ways_there = [[*map(_line, _path(each))] for each in (one, other)]
    if not all(ways_there):
        return one.words == other.words
    # A log may have lost lines in between.
    same_end = ways_there[0][-1] == ways_there[1][-1] and one.words == other.words
    return ways_there[0] == ways_there[1] or same_end


def went_wrong(one: RankEnding) -> str:
    """What it did, as a predicate: what it raised or how it exited, and where."""
    here = f"{at(one.place)}{quoted(one.place)}{_called(one)}"
    code = f"exit code {one.exit_code}"
    if not one.exception:
        said = f", its last output '{one.words}'," if one.words else ""
        return f"ended with {code}{here}{said}"
    if one.source == "exit":
        return f"raised {one.words}{here}; it was caught, and the process ended with {code}"
    if one.source:
        where = "on stderr" if one.source == "stderr" else f"in {one.source}"
        return f"ended with {code}; the last traceback {where} is {one.words}{here},"
    return f"raised {one.words}{here}"


def _called(one: RankEnding) -> str:
    """The calls that led to its line, innermost first: evaluation begins in the loop, say."""
    callers = [place(frame) for frame in _path(one)[-2::-1]][:MOST_CALLERS]
    return f", called at {', '.join(callers)}" if callers else ""


def thread(one: RankEnding) -> str:
    """Another exception, which ended a thread before, to follow a sentence; empty: none did."""
    if not one.thread or (one.exception and one.thread.startswith(one.words)):
        return ""
    return f"; before, a thread of rank {one.rank} raised {one.thread}"


def confidence(one: RankEnding) -> Confidence:
    """How sure it is that its exception ended it: a text may be that of another process."""
    return Confidence.CERTAIN if one.source in ("", "exit") else Confidence.LIKELY


def ways(rows: Sequence[RankEnding]) -> Mapping[int, str]:
    """The line of each rank, and the call that led only there: helpers may be called from many.

    Ranks that took the same way have the same text. Empty: not known.
    """
    paths = {one.rank: path for one in rows if (path := _path(one))}
    together = zip(*paths.values(), strict=False)
    common = len([*takewhile(lambda frames: len({*map(_line, frames)}) == 1, together)])
    return {one.rank: _way(one, paths.get(one.rank, ())[common:-1]) for one in rows}


def _way(one: RankEnding, apart: Sequence[Frame]) -> str:
    return place(one.place) + (f", called at {place(apart[0])}" if apart else "")


def _path(one: RankEnding) -> list[Frame]:
    return [frame for frame in one.stack if frame.of_user]


def _line(frame: Frame) -> tuple[str, int]:
    return frame.file, frame.line


def others(run: TrainingRun, named_before: Collection[RankEnding]) -> str:
    """What the other ranks did, to follow a sentence; empty: no other ranks, or not known."""
    groups: dict[str, list[int]] = {}
    for one in run.ranks:
        if one not in named_before and (state := _state(one)):
            groups.setdefault(state, []).append(one.rank)
    return "".join(
        f"; {ranks(numbers)} {state if len(numbers) == 1 else state.replace('was ', 'were ', 1)}"
        for state, numbers in groups.items()
    )


def _state(one: RankEnding) -> str:
    if one.outcome == "finished":
        return "finished the script"
    if one.fell and not one.echoes and one.exception:
        return f"raised {one.exception}"
    verb = "waited" if one.waits else "was"
    return f"{verb} {stood(one)}" if one.doing or one.place else ""


def traceback(one: RankEnding) -> str:
    """The traceback as Python prints it, the innermost frame last."""
    # The stack holds what another process has handed on in a message.
    whole = one.exception and TRACEBACK not in one.message
    last = f"{one.exception}: {one.message}".removesuffix(": ") if whole else one.words
    # Of a rank that hung, the last line says nothing about it.
    last = last if one.fell else ""
    return "\n".join([f"# {ranks([one.rank])}", *printed(one.stack), *([last] if last else [])])


def printed(stack: Iterable[Frame]) -> Iterator[str]:
    """The lines of a stack as Python prints it, the innermost frame last."""
    for frame in stack:
        yield f'  File "{frame.file}", line {frame.line}, in {frame.function}'
        if frame.text:
            yield f"    {frame.text}"


def on_workers(one: RankEnding, loading: Loading | None) -> bool:
    """Whether it hung while it waited for a batch from a DataLoader worker."""
    # The recorder has no phase between steps: then only the stack shows it.
    if one.outcome != "hung" or one.doing not in ("", "loader", "rest"):
        return False
    loaders = loading.loaders if loading is not None else ()
    workers = [loader.num_workers for loader in loaders if loader.rank == one.rank]
    inner = one.stack[-1] if one.stack else None
    if inner is None:
        return one.doing == "loader" and any(workers)
    if inner.of_user or (workers and not any(workers)):
        return False
    return any("torch/utils/data/" in f.file and f.bare == TAKES for f in one.stack)


def awaited(run: TrainingRun) -> tuple[RankEnding, ...]:
    """The ranks that the others waited for when a run that stood still was ended.

    Empty: it moved, or no rank was elsewhere.
    """
    stood = [one for one in run.ranks if one.outcome in ENDED and one.busy is not None]
    if len(stood) < len(run.ranks):
        return ()
    apart = tuple(one for one in stood if not one.waits)
    return apart if len(apart) < len(stood) else ()


def again(run: TrainingRun) -> str:
    """The launch command, as far as ddoctor knows it."""
    return f"torchrun … {' '.join(run.command or (run.script,))}"
