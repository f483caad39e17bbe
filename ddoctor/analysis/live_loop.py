"""Work of the training loop itself in a live run, before the model of a step or after it.

Where a line stands in the loop tells it: before all lines that call the model, the backward pass
and the optimizer, or after them. Between them may be the loss, which belongs to the training.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import takewhile
from statistics import fmean

from ddoctor.analysis import gpu_lines, loop_lines
from ddoctor.analysis.live_ranks import AGAIN, IN_COLLECTION, IN_ENGINE, LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import IN_MODEL, NOTABLE
from ddoctor.evidence.live import Activity, Block
from ddoctor.evidence.training import Frame

OF_THE_STEP = (*IN_MODEL, IN_ENGINE)
FORWARD, REST = "forward", "rest"
OUTSIDE = (REST, IN_COLLECTION)


class Place(Enum):
    """Where work stands in the loop of a step."""

    PREPARES = auto()
    """Before the model, on the batch."""
    EARLIER = auto()
    """Before the model, on something else."""
    WITHIN = auto()
    """In the line that calls the model, backward or the optimizer."""
    LATER = auto()
    """After them."""
    UNKNOWN = auto()
    """In no loop with them, or between them."""


# A stack may change while py-spy reads it, and then shows a line that does not belong to it.
TORN = 1


@dataclass(frozen=True, kw_only=True)
class LoopWork:
    """Work that all ranks do again and again."""

    shares: Mapping[LiveRankState, float]
    """The share of the time, 0 to 1, of each rank."""
    lines: Sequence[Frame]
    """The lines of the loop with this work, those with the most samples first."""

    @property
    def share(self) -> float:
        """Their mean: that of one rank is known to a few percent only."""
        return fmean(self.shares.values())


def preparing(live: LiveState) -> LoopWork | None:
    """Work on a batch before the model gets it; None: too little."""
    return _work(live, {Place.PREPARES})


def around(live: LiveState) -> LoopWork | None:
    """Other work of the loop, by its place or its text; None: too little."""
    return _work(live, {Place.EARLIER, Place.LATER})


def _work(live: LiveState, counted: Collection[Place]) -> LoopWork | None:
    if not live.moves or live.straggler is not None:
        return None
    # Of a rank that is nearly always there, the samples do not show how often it gets there.
    if max(one.seen.visits(REST) for one in live.ranks) < AGAIN:
        return None
    # A host that waits for its GPU has the time for such work.
    if any(one.seen.share(gpu_lines.AT_GPU) >= NOTABLE for one in live.ranks):
        return None
    met: Counter[Frame] = Counter()
    shares: dict[LiveRankState, float] = {}
    for one in live.ranks:
        here: Counter[Frame] = Counter()
        for row in one.seen.activities:
            place, line = _told(one, row)
            if place in counted and line is not None:
                here[line] += row.samples
        shares[one] = here.total() / one.seen.samples
        met += here
    work = LoopWork(shares=shares, lines=[line for line, _ in met.most_common()])
    of_all = min(shares.values()) >= NOTABLE / 2
    return work if of_all and work.share >= NOTABLE else None


def _told(one: LiveRankState, row: Activity) -> tuple[Place, Frame | None]:
    """What this work is by its place and its text, and its line."""
    place, line = _placed(one, row)
    does = loop_lines.does(row.line) if row.name in OUTSIDE and row.line is not None else ""
    if does and (place is not Place.PREPARES or does in loop_lines.OF_NO_BATCH):
        return Place.LATER, row.line
    return place, line


def _placed(one: LiveRankState, row: Activity) -> tuple[Place, Frame | None]:
    """What this work is for the step, and the line of the loop that begins it."""
    if row.name != REST or not row.calls:
        return Place.UNKNOWN, None
    steps = (other for other in one.seen.activities if other.name in OF_THE_STEP)
    often = (other for other in steps if other.samples > TORN)
    found = [met for other in often if (met := _compared(row, other))[1] is not None]
    places = {place for place, _ in found}
    # Of what stands before the model, only the line that calls the model shows if it gets it.
    if Place.PREPARES in places:
        places.discard(Place.EARLIER)
    return (places.pop(), found[0][1]) if len(places) == 1 else (Place.UNKNOWN, None)


def _compared(row: Activity, step: Activity) -> tuple[Place, Frame | None]:
    """What the place of this work in the loop tells, where its way parts from that of a step."""
    pairs = list(zip(row.calls, step.calls, strict=False))
    shared = [here for here, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    if len(shared) < len(pairs):
        here, there = pairs[len(shared)]
        alike = (here.file, here.function) == (there.file, there.function)
        loop = next((block for block in step.within if alike and _contains(block, here)), None)
        if loop is not None and here.line < there.line:
            model = there.text if step.name == FORWARD else ""
            return Place.PREPARES if _on_the_batch(here, loop, model) else Place.EARLIER, here
        if loop is not None:
            return Place.LATER, here
    if not shared:
        return Place.UNKNOWN, None
    # The same line calls both: what stands inside of another call's brackets runs first.
    first = len(shared) < len(row.calls) and _passes(shared[-1], row.calls[len(shared)])
    return Place.PREPARES if first else Place.WITHIN, shared[-1]


def _on_the_batch(line: Frame, loop: Block, model: str) -> bool:
    """Whether the line works on what the loop's head gives, or the line ``model`` reads."""
    if line.line == loop.line:
        return True
    read, written = _names(line.text)
    _, given = _names(f"{loop.text} pass")
    return bool((read | written) & _names(model)[0] or read & given)


def _names(text: str) -> tuple[set[str], set[str]]:
    """The variables that a line reads and writes, without functions, ``self`` and counters."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return set(), set()
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    counters = {
        node.target.elts[0]
        for node in nodes
        if isinstance(node, ast.For)
        and isinstance(node.target, ast.Tuple)
        and "enumerate(" in ast.unparse(node.iter)
    }
    names = [
        node
        for node in nodes
        if isinstance(node, ast.Name)
        and node.id != "self"
        and id(node) not in called
        and node not in counters
    ]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return read, {node.id for node in names} - read


def _contains(block: Block, line: Frame) -> bool:
    """Whether it is a loop with this line, or with this line at its head."""
    same = (block.file, block.function) == (line.file, line.function)
    return block.loop and same and block.line <= line.line <= block.end


def _passes(line: Frame, called: Frame) -> bool:
    """Whether the line passes to a function what ``called`` returns."""
    try:
        nodes = list(ast.walk(ast.parse(line.text)))
    except (SyntaxError, ValueError):
        return False
    name = called.function.rpartition(".")[2]
    return any(
        isinstance(inner, ast.Call) and ast.unparse(inner.func).rpartition(".")[2] == name
        for outer in nodes
        if isinstance(outer, ast.Call)
        for argument in (*outer.args, *outer.keywords)
        for inner in ast.walk(argument)
    )
