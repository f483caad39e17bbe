"""Where work of the user's stands in the loop of a training step: before the model, or after it.

A line before those that call the model, the backward pass and the optimizer prepares the step; one
after them follows it. What stands between them may be the loss, which belongs to the training.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import takewhile

from ddoctor.analysis import loop_lines
from ddoctor.evidence.frames import Block, Frame
from ddoctor.evidence.live import Activity

FORWARD, REST, COLLECTION = "forward", "rest", "gc"


class Place(Enum):
    """Where work stands in the loop of a step."""

    PREPARES = auto()
    """Work on the batch that the model gets."""
    EARLIER = auto()
    """Before the model, on something else."""
    WITHIN = auto()
    """In the line that calls the model, or between the model and the optimizer."""
    LATER = auto()
    """After the optimizer."""
    UNKNOWN = auto()
    """In no loop with them, or its place is not clear."""


@dataclass(frozen=True)
class LoopLine:
    """A line of the loop that begins such work, or the line itself where the place is not known."""

    frame: Frame
    does: str = ""
    """What the work does by its own text, such as ``logs``; empty: not known."""


def told(row: Activity, steps: Sequence[Activity], after: str = "") -> tuple[Place, LoopLine]:
    """What this work is by its place and its text; it has a user's frame.

    ``steps``: the model, backward and the optimizer. ``after``: the last of the step's phases
    before this work; empty: not known.
    """
    itself = row.calls[-1]
    place, line = _placed(row, steps, after) if row.name == REST else (Place.UNKNOWN, itself)
    does = loop_lines.does(itself) if row.name in (REST, COLLECTION) else ""
    if place is Place.PREPARES and does not in loop_lines.OF_NO_BATCH:
        does = ""
    if does and place not in (Place.EARLIER, Place.LATER):
        return Place.LATER, LoopLine(itself, does)
    return place, LoopLine(line, does)


def _placed(row: Activity, steps: Sequence[Activity], after: str) -> tuple[Place, Frame]:
    """Its place, and the line of the loop that begins it."""
    itself = row.calls[-1]
    models = [met for other in steps if other.name == FORWARD for met in _compared(row, other)]
    others = [met for other in steps if other.name != FORWARD for met in _compared(row, other)]
    prepares = next((line for place, line in models if place is Place.PREPARES), None)
    if prepares is not None:
        return Place.PREPARES, prepares
    if after in (FORWARD, "backward"):
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
    if step.name == FORWARD and _on_the_batch(here, loop, there):
        yield Place.PREPARES, here
    else:
        yield Place.EARLIER if here.line < there.line else Place.LATER, here


def _on_the_batch(line: Frame, loop: Block | None, model: Frame) -> bool:
    """Whether the line works on what the loop's head gives, or the line ``model`` reads."""
    read, written = _names(line.text)
    of_model, _ = _names(model.text)
    if line.line > model.line:
        # The next batch, which the model gets in the next step.
        return bool(written & of_model)
    _, given = _names(f"{loop.text} pass") if loop is not None else (set(), set[str]())
    at_head = loop is not None and line.line == loop.line
    return at_head or bool((read | written) & of_model or read & given)


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
