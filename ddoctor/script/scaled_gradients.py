"""Gradients that a training clips or applies while the factor of a GradScaler is in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.clipping import CLIPS
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Call
from ddoctor.script.training_loops import BACKWARD, OTHER_STEPS

SCALERS = ("GradScaler", "ShardedGradScaler")


def scaled_gradients(program: Program) -> Iterator[tuple[Call, Call]]:
    """What uses them, each with what scales the loss.

    Nothing where any line divides gradients by the factor, or may leave the step to a scaler.
    """
    scale = next(_scales(program), None)
    if scale is None or any(map(_may_be_off, program.calls)):
        return
    if not any(call.method == "unscale_" for call in program.calls):
        yield from (
            (one, scale) for one in program.calls if one.method in CLIPS and trains(one, program)
        )
    if not any(call.method == "step" and _is_of_scaler(call, program) for call in program.calls):
        yield from ((one, scale) for one in program.calls if _updates(one, program))


def _scales(program: Program) -> Iterator[Call]:
    """The calls of ``scale`` in a training loop whose result a backward pass begins with."""
    for call in program.calls:
        scales = call.method == "scale" and _is_of_scaler(call, program) and trains(call, program)
        if scales and any(
            isinstance(node, ast.Attribute) and node.attr in BACKWARD
            for node in ast.walk(call.statement)
        ):
            yield call


def trains(call: Call, program: Program) -> bool:
    return any(block.node in program.training for block in program.around(call))


def _is_of_scaler(call: Call, program: Program) -> bool:
    """Whether it is a method of a GradScaler, or of what is called so."""
    if call.receiver is None:
        return False
    made = program.origins(call.receiver, call.scope)
    named = "scaler" in lower(own_name(call.receiver))
    return named or any(one.rpartition(".")[2] in SCALERS for one in made)


def _may_be_off(call: Call) -> bool:
    """Whether it makes a scaler that does nothing, or that something else decides on."""
    given = {word.arg: word.value for word in call.node.keywords}
    on = given.get("enabled")
    return call.method in SCALERS and (None in given or (on is not None and _is_false(on)))


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _updates(call: Call, program: Program) -> bool:
    """Whether it is the step of an optimizer of torch."""
    if call.method != "step" or call.receiver is None or not trains(call, program):
        return False
    made = () if OTHER_STEPS & lower(call.on) else program.origins(call.receiver, call.scope)
    return any(one.startswith("torch.optim.") for one in made) and not any(
        "lr_scheduler" in one for one in made
    )
