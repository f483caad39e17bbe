"""Schedules of a learning rate that count epochs and move in each step, or the other way round."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.step_order import in_each_turn

Unit = Literal["epochs", "steps"]
LENGTHS: Mapping[str, Mapping[str, int]] = {
    "CosineAnnealingLR": {"T_max": 1},
    "OneCycleLR": {"total_steps": 2, "steps_per_epoch": 4},
    "PolynomialLR": {"total_iters": 1},
    "LinearLR": {"total_iters": 3},
    "get_linear_schedule_with_warmup": {"num_training_steps": 2},
    "get_cosine_schedule_with_warmup": {"num_training_steps": 2},
    "get_polynomial_decay_schedule_with_warmup": {"num_training_steps": 2},
    "get_scheduler": {"num_training_steps": 3},
}
"""Their whole length, by keyword and position: torch/optim/lr_scheduler.py and transformers'
optimization.py."""
PACKAGES = ("torch.optim.lr_scheduler.", "transformers.", "diffusers.optimization.")
OF_STEPS = frozenset({"steps", "iters", "iterations", "batches", "updates", "step", "len"})
OF_EPOCHS = frozenset({"epochs", "epoch"})
MOST_STEPS = 4
"""Variables that are followed from a schedule to its length."""


@dataclass(frozen=True)
class OtherUnit:
    """A schedule, and what moves it."""

    made: Call
    moved: Call
    counts: Unit
    """What its length counts."""


def other_units(program: Program) -> Iterator[OtherUnit]:
    """The schedules that are the only one of their kind in the script, and move otherwise."""
    for name, made in program.by_name.items():
        if len(made) != 1 or not name.startswith(PACKAGES) or made[0].method not in LENGTHS:
            continue
        moved = [one for one in program.calls if _moves(one, name, program)]
        length = _length(made[0])
        if length is None or not moved or any(one.node.args for one in moved):
            continue
        counts = _unit(length, made[0].scope, program, MOST_STEPS)
        in_steps = any(_in_each_step(one, program) for one in moved)
        in_epochs = all(_in_each_epoch(one, program) for one in moved)
        if counts is not None and (in_steps if counts == "epochs" else in_epochs):
            yield OtherUnit(made[0], moved[0], counts)


def _moves(call: Call, name: str, program: Program) -> bool:
    named = call.method == "step" and call.receiver is not None
    return named and name in program.origins(call.receiver, call.scope)  # type: ignore[arg-type]


def _length(made: Call) -> ast.expr | None:
    """The argument with the whole length of a schedule; None: it is not given."""
    for keyword, position in LENGTHS[made.method].items():
        named = next((one.value for one in made.node.keywords if one.arg == keyword), None)
        if named is not None:
            return named
        if position < len(made.node.args):
            return made.node.args[position]
    return None


def _unit(node: ast.expr, scope: Scope, program: Program, steps: int) -> Unit | None:
    """What a number counts, by the words of what it comes from; None: they do not say."""
    found = program.values(node, scope) if steps and variable(node) else ()
    if len(found) == 1 and not isinstance(found[0][0], ast.Constant):
        return _unit(*found[0], program, steps - 1)
    words = lower(source(node))
    if OF_STEPS & words:
        return "steps"
    multiplied = any(isinstance(one, ast.Mult) for one in ast.walk(node))
    return "epochs" if OF_EPOCHS & words and not multiplied else None


def _in_each_step(call: Call, program: Program) -> bool:
    """Whether each turn of a training loop within a loop over epochs makes the call."""
    loop = in_each_turn(call, program)
    if not isinstance(loop, ast.For) or OF_EPOCHS & lower(source(loop.target)):
        return False
    return any(block.node in program.epochs for block in program.around(call))


def _in_each_epoch(call: Call, program: Program) -> bool:
    """Whether it is in a loop over epochs, and not in one over batches."""
    around = {block.node for block in program.around(call)}
    return bool(around & program.epochs) and not around & program.training
