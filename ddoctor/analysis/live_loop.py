"""Work of the training loop itself in a live run, before the model of a step or after it.

Where a line stands in the loop tells it: before all lines that call the model, the backward pass
and the optimizer, or after them. Between them may be the loss, which belongs to the training.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean

from ddoctor.analysis import gpu_lines
from ddoctor.analysis.live_ranks import AGAIN, IN_ENGINE, LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import IN_MODEL, NOTABLE
from ddoctor.evidence.live import Activity, Block
from ddoctor.evidence.training import Frame

OF_THE_STEP = (*IN_MODEL, IN_ENGINE)
REST = "rest"
BEFORE, WITHIN, AFTER = -1, 0, 1
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
    return _work(live, lambda one, row: _placed(one, row, BEFORE))


def around(live: LiveState, known: Callable[[Activity], bool]) -> LoopWork | None:
    """Work after the step, or at lines that are ``known`` to be no part of it; None: too little."""
    return _work(live, lambda one, row: row.line if known(row) else _placed(one, row, AFTER))


def _work(
    live: LiveState, counted: Callable[[LiveRankState, Activity], Frame | None]
) -> LoopWork | None:
    """Work in activities for which ``counted`` returns a line."""
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
        rows = [(row, line) for row in one.seen.activities if (line := counted(one, row))]
        shares[one] = sum(row.samples for row, _ in rows) / one.seen.samples
        for row, line in rows:
            met[line] += row.samples
    work = LoopWork(shares=shares, lines=[line for line, _ in met.most_common()])
    of_all = min(shares.values()) >= NOTABLE / 2
    return work if of_all and work.share >= NOTABLE else None


def _placed(one: LiveRankState, row: Activity, wanted: int) -> Frame | None:
    """The line of the loop with this work, if it stands before (-1) or after (1) the step."""
    if row.name != REST or not row.calls:
        return None
    steps = (other for other in one.seen.activities if other.name in OF_THE_STEP)
    often = (other for other in steps if other.samples > TORN)
    found = [met for other in often if (met := _compared(row, other)) is not None]
    return found[0][1] if found and {order for order, _ in found} == {wanted} else None


def _compared(row: Activity, step: Activity) -> tuple[int, Frame] | None:
    """Where the ways to both part: the order of the two lines in a loop, and the first of them."""
    pairs = list(zip(row.calls, step.calls, strict=False))
    shared = [here for here, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    if len(shared) < len(pairs):
        here, there = pairs[len(shared)]
        alike = (here.file, here.function) == (there.file, there.function)
        if alike and any(_contains(block, here) for block in step.within):
            return (BEFORE if here.line < there.line else AFTER), here
    if not shared:
        return None
    # The same line calls both: what stands inside of another call's brackets runs first.
    first = len(shared) < len(row.calls) and _passes(shared[-1], row.calls[len(shared)])
    return (BEFORE if first else WITHIN), shared[-1]


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
