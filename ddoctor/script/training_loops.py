"""The loops of a script that train, and the loops over epochs around them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Block, Call, Scope

BACKWARD = ("backward", "manual_backward")
OTHER_STEPS = frozenset({"scheduler", "sched", "schedule", "lr", "prof", "profiler", "env", "envs"})
"""Words of objects with a method ``step`` that are no optimizer."""
DEEPEST = 8
"""Functions that are followed from a loop to its backward pass."""


@dataclass(frozen=True)
class TrainingLoops:
    """Statements of loops."""

    training: set[ast.AST] = field(default_factory=set)
    """Those that call backward and step an optimizer."""
    epochs: set[ast.AST] = field(default_factory=set)
    """Those around them."""


def training_loops(
    scopes: Sequence[Scope], called: Mapping[ast.Call, Scope | None]
) -> TrainingLoops:
    """Find them in all functions; ``called``: the script's own function that a call calls."""
    found = TrainingLoops()
    effects: dict[Scope, set[str]] = {scope: set() for scope in scopes}
    for _ in range(DEEPEST):
        before = {scope: set(one) for scope, one in effects.items()}
        for scope in scopes:
            of_calls = [(call, _does(call, called[call.node], effects)) for call in scope.calls]
            effects[scope] = _effects(of_calls, found)
        if effects == before:
            break
    return found


def _effects(of_calls: Sequence[tuple[Call, set[str]]], found: TrainingLoops) -> set[str]:
    """What calling a function does: ``backward``, ``step``, or ``trains`` with a loop."""
    of_loops: dict[Block, set[str]] = defaultdict(set)
    for call, does in of_calls:
        for loop in call.loops:
            of_loops[loop] |= does
    trains = False
    for call, does in of_calls:
        inner = "trains" in does
        for loop in reversed(call.loops if does else ()):
            if inner:
                found.epochs.add(loop.node)
                found.training.discard(loop.node)
            elif {"backward", "step"} <= of_loops[loop] and loop.node not in found.epochs:
                found.training.add(loop.node)
                inner = True
        trains = trains or inner
    if trains:
        return {"trains"}
    return set().union(*(does for _, does in of_calls))


def _does(call: Call, called: Scope | None, effects: Mapping[Scope, set[str]]) -> set[str]:
    if called is not None and called is not call.scope and effects[called]:
        return effects[called]
    if call.method in BACKWARD:
        return {"backward"}
    steps = call.method == "step" and not OTHER_STEPS & lower(call.on)
    return {"step"} if steps else set()
