"""Collectives of a live run that a step could do without, by the samples of all ranks."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean

from ddoctor.analysis import live_cost
from ddoctor.analysis.live_ranks import LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loop_work import BACKWARD_OR_WAIT
from ddoctor.analysis.own_loader import OF_THE_STEP, TORN
from ddoctor.analysis.stack_activities import COLLECTIVE
from ddoctor.evidence.frames import Block, Frame
from ddoctor.evidence.live import Activity
from ddoctor.evidence.source_text import syntax_tree

BUFFERS = "_sync_buffers"
"""torch/nn/parallel/distributed.py: before the forward pass."""
OF_BUFFERS = 0.05
"""Share of the time from which on these broadcasts are reported: hardly any training needs them."""
OPERATIONS = (
    *("all_reduce", "reduce", "broadcast", "barrier", "all_gather_object"),
    *("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"),
    # Of a functional collective, such as that of DTensor.full_tensor().
    "wait_tensor",
)
"""Those that all ranks of a group call; a pipeline waits for the work of others in the rest."""
OF_EACH_VALUE = re.compile(r"\blog_dict\((\{.*\bfor\b|[\w.]).*sync_dist=True")
"""Lightning exchanges each value that such a line logs; of a literal, there are few."""


@dataclass(frozen=True, kw_only=True)
class LiveCollectives:
    """What all ranks spend in such collectives."""

    shares: Mapping[LiveRankState, float]
    """The share of the time, 0 to 1, of each rank."""
    calls: Sequence[Frame]
    """The user's frames with the most samples, innermost last."""
    operation: str
    loop: str = ""
    """The first line of the loop around it."""
    sleep: float | None = None
    """Seconds of each wait, on the rank with the shortest ones; None: a GPU does not show it."""

    @property
    def line(self) -> Frame | None:
        """The innermost of these frames."""
        return self.calls[-1] if self.calls else None

    @property
    def items(self) -> int | None:
        """The number of items of the loop, where it is over a literal; None: it is not."""
        for text in (self.loop, f"{self.loop} pass"):
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                (node,) = syntax_tree(text).body
                over = node.iter if isinstance(node, ast.For) else None
                return len(over.elts) if isinstance(over, ast.Tuple | ast.List) else None
        return None

    @property
    def share(self) -> float:
        """Their mean: that of one rank is known to a few percent only."""
        return fmean(self.shares.values())


def one_by_one(live: LiveState) -> LiveCollectives | None:
    """Those that an inner loop calls, such as one over parameters, or one over what is logged.

    None: too little.
    """
    steps = {
        one: [
            row
            for row in one.seen.activities
            if row.name in (*OF_THE_STEP, BACKWARD_OR_WAIT) and row.samples > TORN
        ]
        for one in live.ranks
    }
    return _spent(
        live,
        lambda one, row: (
            row.makes in OPERATIONS and (_inner_loop(row, steps[one]) or _of_each_value(row.line))
        ),
    )


def of_buffers(live: LiveState) -> LiveCollectives | None:
    """DDP's broadcasts of buffers; None: too little."""
    return _spent(live, lambda one, row: row.makes == BUFFERS, OF_BUFFERS)


def _spent(
    live: LiveState,
    counted: Callable[[LiveRankState, Activity], bool],
    least: float = live_cost.TOLD,
) -> LiveCollectives | None:
    # The first collective of a step is where ranks wait for the one that comes last.
    if not live.whole or not live.moves or len(live.ranks) < 2 or live.straggler is not None:
        return None
    met: Counter[Activity] = Counter()
    shares: dict[LiveRankState, float] = {}
    for one in live.ranks:
        rows = [row for row in one.seen.activities if row.name == COLLECTIVE and counted(one, row)]
        shares[one] = sum(row.samples for row in rows) / one.seen.samples
        met.update({row: row.samples for row in rows})
    if min(shares.values()) < least / 2 or fmean(shares.values()) < least:
        return None
    most = met.most_common(1)[0][0]
    loop = _innermost(most)
    waits = [
        shares[one] * live.seconds / one.seen.wakes
        for one in live.ranks
        if one.seen.wakes and not one.seen.on_gpu
    ]
    return LiveCollectives(
        shares=shares,
        calls=most.calls,
        operation=most.makes,
        loop=loop.text if loop is not None and not _of_each_value(most.line) else "",
        sleep=min(waits) if len(waits) == len(live.ranks) else None,
    )


def _innermost(row: Activity) -> Block | None:
    return next((block for block in reversed(row.within) if block.loop), None)


def _of_each_value(line: Frame | None) -> bool:
    return line is not None and OF_EACH_VALUE.search(line.text) is not None


def _inner_loop(row: Activity, steps: Sequence[Activity]) -> bool:
    """Whether the innermost loop around the call has no part of the step in it."""
    loop = _innermost(row)
    return loop is not None and not any(
        (loop.file, loop.function) == (frame.file, frame.function)
        and loop.line <= frame.line <= loop.end
        for other in steps
        for frame in other.calls
    )
