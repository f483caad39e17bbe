"""Collectives to which the ranks passed different tensors, as their errors report it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ddoctor.analysis import endings
from ddoctor.evidence.log import Log, LogEvent
from ddoctor.evidence.steps import PHASES
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence

REDUCTION = "DDP's gradient reduction"
# gloo/transport/tcp/pair.cc, readBuildIov
GLOO = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
# torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, with TORCH_DISTRIBUTED_DEBUG=DETAIL
FINGERPRINT = re.compile(
    r"Rank (\d{1,9}) is running collective: "
    r"CollectiveFingerPrint\(SequenceNumber=\d+,? ?OpType=(\w+)"
    r"(?:, TensorShape=\[([\d, ]*)\], TensorDtypes=(\w+))?"
)
# The same report in a log, where it may be cut off or retold.
CALLED = re.compile(r"(?:OpType=)?(\w+)(?:\(|, )TensorShape=\[([\d, ]*)\]")
# A padded batch has some times the elements of another one; a flag has a millionth of a gradient.
MOST_TIMES = 100
# torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, WorkNCCL's operator<<
WATCHDOG = re.compile(r"SeqNum=(\d+), OpType=(\w+), NumelIn=(\d+), NumelOut=(\d+)")
# To these, all ranks pass the same number of elements, under all names of torch's libraries. To
# others, such as all-to-all, they need not.
ALIKE = re.compile(
    r"_?(all_?reduce|broadcast|reduce|all_?gather(_into_tensor)?|reduce_scatter(_tensor)?|barrier)"
    r"(_base|_coalesced|_single)?",
    re.IGNORECASE,
)


FROM_ONE = ("broadcast", "reduce")
"""Of these, a rank may leave the call before the others come."""


@dataclass(frozen=True, kw_only=True)
class Brought:
    """The tensors that some ranks passed to a collective."""

    ranks: tuple[int, ...]
    operation: str
    what: str = ""
    """Shape and type, or the number of elements; empty: not known."""
    place: str = ""
    """The line of the call; empty: not known."""

    def __str__(self) -> str:
        of = f" of {self.what}" if self.what else ""
        return f"{self.operation}{of}{f' at {self.place}' if self.place else ''}"


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """What the ranks passed to the same collective, and the source of that."""

    brought: tuple[Brought, ...]
    told_by: str
    detail: str = ""
    """What the source says of the collective, to precede the calls; may be empty."""
    confidence: Confidence = Confidence.CERTAIN

    @property
    def same_call(self) -> bool:
        """Whether all ranks called the same collective, at the same line."""
        places = {one.place for one in self.brought} - {""}
        return len({one.operation for one in self.brought}) < 2 and len(places) < 2

    @property
    def place(self) -> str:
        """The first line that is known; empty: none."""
        return next((one.place for one in self.brought if one.place), "")

    def __str__(self) -> str:
        return ", ".join(f"{endings.ranks(one.ranks)} called {one}" for one in self.brought)


def mismatch(run: TrainingRun) -> Mismatch | None:
    """The first mismatch that a rank's error reports; None: no error does."""
    failed = [one for one in run.ranks if one.fell]
    # A report that is cut off names one rank only.
    if len(rows := _fingerprints(failed)) > 1:
        return Mismatch(brought=rows, told_by="TORCH_DISTRIBUTED_DEBUG=DETAIL")
    for one in failed:
        if size := GLOO.search(f"{one.message} {one.printed}"):
            rows = _last_called(run)
            calls, places = {row.operation for row in rows}, {row.place for row in rows}
            return Mismatch(
                brought=rows,
                told_by="gloo",
                # The recorded call and the line of the stack agree.
                confidence=Confidence.CERTAIN
                if len(calls) > 1 and len(places) > 1 and "" not in places
                else Confidence.LIKELY,
                detail=f"rank {one.rank} received {size[1]} bytes and expected {size[2]} at most",
            )
    return _by_watchdog(failed)


def same_call(report: str) -> bool:
    """Whether this report of a mismatch is about one call with tensors of different shapes."""
    calls = CALLED.findall(report)
    sizes = [prod(map(int, re.findall(r"\d+", shape))) for _, shape in calls]
    alike = len({operation.lower() for operation, _ in calls}) == 1
    return alike and len(set(sizes)) > 1 and max(sizes) <= MOST_TIMES * max(1, min(sizes))


def different_calls(log: Log) -> tuple[LogEvent, ...]:
    """The timeouts of ranks in different collectives of the same number; empty: there are none."""
    numbers: dict[str, list[LogEvent]] = {}
    for one in log.of("watchdog"):
        if "number" in one.values and ALIKE.fullmatch(one.values.get("operation", "")):
            numbers.setdefault(one.values["number"], []).append(one)
    for events in numbers.values():
        ranks: dict[str, set[int | None]] = {}
        for one in events:
            ranks.setdefault(one.values["operation"], set()).add(one.rank)
        # A rank that reports both waits in two groups.
        if len(ranks) > 1 and not set.intersection(*ranks.values()):
            return tuple(events)
    return ()


def printed_calls(log: Log) -> Mapping[str, tuple[LogEvent, ...]]:
    """The last collectives of ranks that NCCL numbers alike, by that number; empty: none differ.

    NCCL prints each call with its number within a communicator, and the communicator's size. Where
    a GPU has several communicators of that size, nothing says which of them belong together.
    """
    numbers: dict[tuple[str, str], list[LogEvent]] = {}
    for one in log.of("nccl-call"):
        if ALIKE.fullmatch(one.values["operation"]):
            numbers.setdefault((one.values["size"], one.values["number"]), []).append(one)
    several = Counter(
        (one.host, one.values["device"], one.values["size"]) for one in log.of("nccl-call")
    )
    found = {}
    for (size, number), calls in numbers.items():
        alone = all(several[one.host, one.values["device"], size] == 1 for one in calls)
        if alone and len({(one.values["operation"], one.values["numel"]) for one in calls}) > 1:
            found[number] = tuple(calls)
    return found


def _last_called(run: TrainingRun) -> tuple[Brought, ...]:
    """The collective that each rank was in at the end; ranks without a known one are left out.

    If the other ranks have passed the call that one rank is still in, they called it, too.
    """
    rows = [one for one in run.ranks if one.waits and one.doing and one.doing not in PHASES]
    last = next((one for one in rows if have_passed(rows, one)), None)
    ways = endings.ways(rows)
    return tuple(
        Brought(ranks=(one.rank,), operation=one.doing, place=ways[one.rank])
        for one in ([last] if last else rows)
    )


def have_passed(rows: Sequence[RankEnding], last: RankEnding) -> bool:
    """Whether all others have left the call that this rank is in: the same, by its number.

    The source of a broadcast does not wait for the others, nor does who brings fewer elements.
    """
    others = [one for one in rows if one is not last]
    return bool(others) and all(_left(one, last.collectives) == last.doing for one in others)


def held(run: TrainingRun) -> tuple[RankEnding, ...]:
    """All ranks, if all wait and some of them stood still; empty: else.

    A rank may have failed in its collective, once another rank sent what does not fit.
    """
    hung = [one for one in run.ranks if one.stood]
    waiting = tuple(one for one in run.ranks if one in hung or one.echoes)
    whole = bool(hung) and len(waiting) == len(run.ranks)
    return waiting if whole and all(one.waits for one in waiting) else ()


def left_behind(waiting: Sequence[RankEnding]) -> RankEnding | None:
    """The rank in a call that needs all ranks and that all others have left; None: there is none.

    Who brings fewer elements is done sooner.
    """
    alike = (one for one in waiting if ALIKE.fullmatch(one.doing) and one.doing not in FROM_ONE)
    return next((one for one in alike if have_passed(waiting, one)), None)


def _left(one: RankEnding, number: int) -> str:
    """The operation of its call of this number, if it has left it; empty: no, or not known."""
    # It is in the call with the last number, unless it is in one that is not counted.
    newest = one.collectives - (one.doing != REDUCTION)
    back = newest - number
    return one.recent[-1 - back] if 0 <= back < len(one.recent) else ""


def _fingerprints(failed: Sequence[RankEnding]) -> tuple[Brought, ...]:
    """What each rank reports; of itself first, as torch may misname the others' collectives."""
    own: dict[int, Brought] = {}
    others: dict[int, Brought] = {}
    for one in failed:
        for number, operation, shape, kind in FINGERPRINT.findall(one.message):
            rank = int(number)
            rows = own if rank == one.rank else others
            rows[rank] = Brought(
                ranks=(rank,),
                operation=operation.lower(),
                what=f"[{shape}] {kind}" if kind else "",
                place=endings.place(one.place) if rank == one.rank else "",
            )
    return tuple(row for _, row in sorted((others | own).items()))


def _by_watchdog(failed: Sequence[RankEnding]) -> Mismatch | None:
    rows: dict[str, list[Brought]] = {}
    for one in failed:
        if found := WATCHDOG.search(f"{one.message} {one.printed}"):
            number, operation, given, _ = found.groups()
            rows.setdefault(number, []).append(
                Brought(
                    ranks=(one.rank,),
                    operation=operation.lower().strip("_").removesuffix("_base"),
                    what=f"{given} elements",
                    place=endings.place(one.place),
                )
            )
    for several in rows.values():
        alike = all(ALIKE.fullmatch(one.operation) for one in several)
        if alike and len({(one.operation, one.what) for one in several}) > 1:
            return Mismatch(brought=tuple(several), told_by="NCCL's watchdog")
    return None
