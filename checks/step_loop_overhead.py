"""The training loop itself takes a notable part of the step, outside the model.

Collecting garbage, emptying the allocator's cache, reading values back (``.item()``), logging and
torch's debug modes are cheap once and expensive in every step, on every rank. On a GPU, anything
that makes the host wait also leaves the device without work for a while after it.

Symptoms: GPUs are busy half of the time though the data is there; a profile shows gaps between the
steps; the same loop without its extras is faster.

To fix it, do this work in one step of a hundred, and switch debug modes off.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.analysis import endings, live_cost, live_loop, loop_lines
from ddoctor.analysis.live_ranks import shares
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loop_work import LoopLine, Place
from ddoctor.analysis.step_loop import StepLoop
from ddoctor.analysis.stragglers import SLOWER_BY
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)

# Lines with less than half of the samples do not explain most of the time.
MOST = 0.5
FEW = 3


def beside_the_model(loop: StepLoop) -> Iterator[Finding]:
    known = loop.seconds(Place.EARLIER, Place.LATER)
    every = known + loop.seconds(Place.WITHIN, Place.UNKNOWN)
    if not every or every < SLOWER_BY * loop.step:
        return
    sure = known >= MOST * every
    places = (Place.EARLIER, Place.LATER) if sure else (Place.WITHIN, Place.UNKNOWN)
    named = loop.lines(*places)[:FEW]
    if not named:
        return
    seconds = known if sure else every
    share = seconds / loop.step
    does = any(line.does for line in named)
    yield Finding(
        severity=Severity.WARNING if sure and (does or share >= live_cost.SURE) else Severity.NOTE,
        confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
        because=(
            f"all ranks spend {1000 * seconds:.3g} ms of a step of {1000 * loop.step:.3g} ms in "
            f"the loop around the model, mostly at {', '.join(map(_told, named))}"
            + ("" if sure else "; check whether each step needs this")
        ),
        evidence=(
            Observation(
                name="time outside the model in a step",
                value=round(1000 * seconds, 2),
                unit="ms",
                source="mean step of the rank with the least",
            ),
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_seldom(named[0], share),),
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    work = live_loop.around(live)
    if work is None:
        return
    lines = work.lines[:FEW]
    who = "all ranks spend" if len(live.ranks) > 1 else "the run spends"
    yield Finding(
        severity=live_cost.severity(work.share),
        confidence=Confidence.LIKELY,
        because=(
            f"{who} {work.share:.0%} of the time in the loop around the model: "
            + ", ".join(map(_told, lines))
        ),
        evidence=shares("time at these lines", work.shares),
        cost=Cost(value=round(work.share, 2), unit="share of step"),
        fixes=(_seldom(lines[0], work.share),),
    )


def _told(line: LoopLine) -> str:
    does = f" ({line.does})" if line.does else ""
    inner = f", in {endings.place(line.inner)}" if line.inner is not None else ""
    return f"{endings.place(line.frame)}{endings.quoted(line.frame)}{inner}{does}"


def anomaly_mode(use: RankUse) -> Iterator[Finding]:
    ranks = tuple(flags.rank for flags in use.flags if flags.anomaly)
    if ranks:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN,
            because=(
                "torch.autograd.set_detect_anomaly is on, on "
                f"{endings.ranks(ranks, every=use.flags)}: each operation keeps its "
                "traceback, and torch checks each gradient for NaN; it is for debugging only"
            ),
            where=Where(ranks=() if len(ranks) == len(use.flags) else ranks),
            fixes=(
                Fix.python(
                    summary="switch anomaly detection off, except for the step that fails",
                    paste="torch.autograd.set_detect_anomaly(False)",
                ),
            ),
        )


def _alone(line: LoopLine) -> bool:
    """Whether the line does only that."""
    try:
        (statement,) = ast.parse(line.frame.text).body
    except (SyntaxError, ValueError):
        return False
    return bool(line.does) and isinstance(statement, ast.Expr | ast.Assign)


def _seldom(line: LoopLine, share: float) -> Fix:
    if line.does == loop_lines.COLLECTS:
        summary = "leave collection to Python, or collect every 1000 steps on all ranks"
    elif line.does == "empties the allocator's cache":
        summary = "remove it: torch reuses its cache, and must otherwise allocate again"
    elif line.does:
        summary = "do it in one step of a hundred, and read values back only there"
    else:
        summary = "if not each step needs this, do it in one step of a hundred"
    # A line that does more may also do the training itself.
    place = f"{line.frame.file}:{line.frame.line}"
    text = line.frame.text if _alone(line) else f"...  # of {place} what can wait"
    return Fix.python(
        summary=summary,
        paste=f"if step % 100 == 0:\n    {text}",
        caution=place,
        expected_gain=f"up to {share:.0%} of the step",
    )
