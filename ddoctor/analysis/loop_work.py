"""Where work of the user's stands in the loop of a training step: before the model, or after it.

A line before those that call the model, the backward pass and the optimizer prepares the step; one
after them follows it. What stands between them may be the loss, which belongs to the training.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise, takewhile
from types import MappingProxyType

from ddoctor.analysis import endings, loop_lines
from ddoctor.evidence.frames import Block, Frame, Origin
from ddoctor.evidence.live import Activity
from ddoctor.evidence.source_text import syntax_tree

FORWARD, BACKWARD, REST, COLLECTION = "forward", "backward", "rest", "gc"
EVALUATION = "evaluation"
HOOKS = "hooks"
"""Of a live run: functions of the user's that a pass calls for gradients or modules."""
BACKWARD_OR_WAIT = "backward-or-wait"
"""Of a live run: the backward pass, in which DDP also waits for the others."""


PASSES = (FORWARD, BACKWARD, BACKWARD_OR_WAIT)

Called = tuple[Frame, str, str]
"""A line, with the file and the name of a function that it calls."""


class Place(Enum):
    """Where work stands in the loop of a step."""

    FEEDS = auto()
    """What takes or makes the batch: a loop over batches, or a loop's own lines if it has none."""
    PREPARES = auto()
    """Work on the batch that the model gets."""
    EARLIER = auto()
    """Before the model, or before the backward pass, on something that it does not need."""
    WITHIN = auto()
    """In the line that calls the model, or between the model and the optimizer."""
    LATER = auto()
    """After the optimizer."""
    HOOK = auto()
    """In a hook of a gradient or a module."""
    MODEL = auto()
    """In a model that computes outside of the passes of the step."""
    UNKNOWN = auto()
    """In no loop with them, or its place is not clear."""


ON_BATCHES = (Place.FEEDS, Place.PREPARES)


@dataclass(frozen=True)
class LoopLine:
    """A line of the loop that begins such work, or the line itself where the place is not known."""

    frame: Frame
    does: str = ""
    """What the work does by its own text, such as ``logs``; empty: not known."""
    inner: Frame | None = field(default=None, compare=False)
    """The user's line that works for it, sampled most often; None: this line itself."""


def told(
    row: Activity,
    steps: Sequence[Activity],
    after: str = "",
    apart: Mapping[Frame, str] = MappingProxyType({}),
    models: Collection[Called] = (),
) -> tuple[Place, LoopLine]:
    """What this work is by its place and its text; it has a user's frame.

    ``steps``: the model, backward and the optimizer. ``after``: the last of the step's phases
    before this work; empty: not known. ``apart``: calls that give the loss nothing. ``models``:
    calls of functions that call a model.
    """
    itself = row.calls[-1]
    if row.name == HOOKS:
        return Place.HOOK, LoopLine(itself, loop_lines.IN_A_HOOK)
    place, line = _placed(row, steps, after) if row.name == REST else (Place.UNKNOWN, itself)
    if place in ON_BATCHES and any(one in models for one in _called(row) if one[0] == line):
        # No worker has the model, as it is now, to make a batch with.
        place = Place.WITHIN
    does = loop_lines.does(itself) if row.name in (REST, COLLECTION) else ""
    if row.makes == loop_lines.COLLECTS:
        does = row.makes
    # What a line within the making of a batch says is no sign of other work.
    if place in ON_BATCHES and (itself != line or does not in loop_lines.OF_NO_BATCH):
        does = ""
    if place not in (Place.EARLIER, Place.LATER, *ON_BATCHES):
        for one in row.calls[:-1]:
            if one in apart:
                return Place.LATER, LoopLine(one, apart[one], inner=itself)
    if does and place not in (Place.EARLIER, Place.LATER):
        return Place.LATER, LoopLine(itself, does)
    if place in (Place.WITHIN, Place.UNKNOWN) and any(map(is_callback, row.calls)):
        return Place.LATER, LoopLine(itself, loop_lines.IN_A_CALLBACK)
    return place, LoopLine(line, does, inner=itself if itself != line else None)


def calling_models(rows: Iterable[Activity]) -> frozenset[Called]:
    """The lines, and the functions there, whose work a model is a part of."""
    return frozenset(
        one for row in rows if row.name in (FORWARD, EVALUATION) for one in _called(row)
    )


def _called(row: Activity) -> Iterator[Called]:
    for line, inner in pairwise(row.calls):
        yield line, inner.file, inner.function


def apart(rows: Iterable[Activity], steps: Sequence[Activity]) -> Mapping[Frame, str]:
    """The calls whose value no line takes, and what the functions do that they call.

    A function that reads values back, or logs, and returns nothing has no part in the loss.
    ``steps``: the model, backward and the optimizer, to which such calls may lead as well.
    """
    lead = {frame for step in steps for frame in step.calls}
    found: dict[Frame, str] = {}
    for row in rows:
        does = loop_lines.does(row.calls[-1]) if row.name == REST and row.calls else ""
        for line, called in pairwise(row.calls) if does else ():
            if line not in lead and _drops(line, called):
                found.setdefault(line, does)
                break
    return found


def words(line: LoopLine) -> str:
    """Return ``mostly at train.py:30 (`clean(batch)`), often in text.py:7 (`sub(…)`)``."""
    told = f"mostly at {endings.place(line.frame)}{endings.quoted(line.frame)}"
    if line.inner is None:
        return told
    return f"{told}, often in {endings.place(line.inner)}{endings.quoted(line.inner)}"


def is_callback(frame: Frame) -> bool:
    """Whether it is a function that a trainer calls at a moment of the step."""
    return loop_lines.CALLBACK.fullmatch(frame.function) is not None


def _placed(row: Activity, steps: Sequence[Activity], after: str) -> tuple[Place, Frame]:
    """Its place, and the line of the loop that begins it."""
    itself = row.calls[-1]
    models = [met for other in steps if other.name == FORWARD for met in _compared(row, other)]
    others = [met for other in steps if other.name != FORWARD for met in _compared(row, other)]
    on_batches = next((met for met in models if met[0] in ON_BATCHES), None)
    if on_batches is not None:
        return on_batches
    for other in steps:
        for line in _beside_the_loss(row, other) if other.name in PASSES[1:] else ():
            return Place.EARLIER, line
    if after in (FORWARD, BACKWARD):
        return Place.WITHIN, itself
    found = models + others
    places = {place for place, _ in found}
    if after in ("loader", "to-device"):
        return Place.EARLIER, found[0][1] if found else itself
    # After the model alone it may be the loss.
    if len(places) != 1 or (Place.LATER in places and not others):
        return Place.UNKNOWN, itself
    return found[0]


def _compared(row: Activity, step: Activity) -> Iterator[tuple[Place, Frame]]:
    """What the place of this work tells, where its way parts from that of a part of the step."""
    pairs = list(zip(row.calls, step.calls, strict=False))
    shared = [here for here, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    if len(shared) < len(pairs):
        here, there = pairs[len(shared)]
        alike = (here.file, here.function) == (there.file, there.function)
        if alike and here.line != there.line:
            yield from _in_order(here, there, step, depth=len(shared))
            return
    if not shared or (step.name != FORWARD and len(shared) == len(step.calls)):
        return
    # The same line calls both: what stands inside of another call's brackets runs first.
    first = len(shared) < len(row.calls) and _passes(shared[-1], row.calls[len(shared)])
    yield Place.PREPARES if first else Place.WITHIN, shared[-1]


def _beside_the_loss(row: Activity, backward: Activity) -> Iterator[Frame]:
    """The line that begins this work before a backward pass which needs nothing of it."""
    if not any(one.gives for one in backward.origins):
        return  # the way from the batch to the loss is not known
    for place, line in _compared(row, backward):
        if place is Place.EARLIER and not any(_holds(one, line) for one in backward.origins):
            yield line


def _in_order(
    here: Frame, there: Frame, step: Activity, *, depth: int
) -> Iterator[tuple[Place, Frame]]:
    """Two lines of a function, the work's and the step's, if both are in what is repeated."""
    loops = [block for block in step.within if block.loop]
    loop = next((block for block in reversed(loops) if _contains(block, here)), None)
    if loop is None:
        inside = any(_contains(block, frame) for block in loops for frame in step.calls[depth:])
        called = any(_contains(block, frame) for block in loops for frame in step.calls[:depth])
        # A function without a loop is called by one: of the script, or of a library.
        if (inside and not called) or not here.text:
            return
    usual = Place.EARLIER if here.line < there.line else Place.LATER
    of_the_batch = _of_the_batch(here, step.origins) if step.name == FORWARD else None
    yield of_the_batch or usual, here


def _of_the_batch(line: Frame, statements: Sequence[Origin]) -> Place | None:
    """How the line makes what the model gets; ``statements`` do; None: it is none of them."""
    mine = next((one for one in statements if _holds(one, line)), None)
    if mine is None:
        return None
    if mine.counts:
        return None
    taken = any(one.gives for one in statements)
    return Place.FEEDS if mine.gives or not taken else Place.PREPARES


def _contains(block: Block, line: Frame) -> bool:
    """Whether it is a loop with this line, or with this line at its head."""
    return block.loop and _holds(block, line)


def _holds(block: Block | Origin, line: Frame) -> bool:
    same = (block.file, block.function) == (line.file, line.function)
    return same and block.line <= line.line <= block.end


def _drops(line: Frame, called: Frame) -> bool:
    """Whether the line calls a function and does nothing with what it returns."""
    calls = (one.value for one in _statements(line) if isinstance(one, ast.Expr))
    return any(isinstance(one, ast.Call) and _calls(one, called) for one in calls)


def _passes(line: Frame, called: Frame) -> bool:
    """Whether the line passes to a function what ``called`` returns."""
    nodes = [node for one in _statements(line) for node in ast.walk(one)]
    return any(
        isinstance(inner, ast.Call) and _calls(inner, called)
        for outer in nodes
        if isinstance(outer, ast.Call)
        for argument in (*outer.args, *outer.keywords)
        for inner in ast.walk(argument)
    )


def _calls(call: ast.Call, function: Frame) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] == function.bare


def _statements(line: Frame) -> Sequence[ast.stmt]:
    """Those of a line; empty: it is a part of one."""
    try:
        return syntax_tree(line.text).body
    except (SyntaxError, ValueError):
        return ()
