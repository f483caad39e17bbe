"""Trainings that compute in float16, or change weights in float16, and scale no loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.scaled_gradients import SCALERS, trains
from ddoctor.script.scopes import Call
from ddoctor.script.stale_optimizers import FSDP1, FSDP2
from ddoctor.script.step_order import MOST_STEPS, is_trained

AUTOCASTS = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")
WRAPPERS = ("torch.nn.parallel.DistributedDataParallel", FSDP1, FSDP2)
KEEPS = ("fp16", "scale", "master", "amp.initialize")
"""Words of calls that may keep the weights in float32, or scale the loss."""
FLOAT16 = ("torch.float16", "torch.half")


def unscaled_float16(program: Program) -> Call | None:
    """What lets a training compute in float16, where nothing scales a loss; None: there is nothing.

    Whatever is called ``scale``, or may hold a scaler, keeps it quiet.
    """
    if any("scale" in call.method.lower() and call.method not in SCALERS for call in program.calls):
        return None
    autocasts = (call for call in program.calls if call.name in AUTOCASTS)
    found = [one for one in autocasts if _is_float16(one) and trains(one, program)]
    used = _policies(program) if program.training else set()
    for call in program.calls if used else ():
        given = {word.arg: call.scope.names.of(word.value) for word in call.node.keywords}
        if call.node in used and given.get("param_dtype") in FLOAT16:
            found.append(call)
    return next(iter(found), None)


def _policies(program: Program) -> set[ast.AST]:
    """What makes the mixed precision of the models that FSDP wraps; a script may define more."""
    found: set[ast.AST] = set()
    for call in program.calls:
        for word in call.node.keywords:
            if word.arg in ("mixed_precision", "mp_policy"):
                shown = program.values(word.value, call.scope) if variable(word.value) else ()
                found |= {word.value, *(value for value, _ in shown)}
    return {one for one in found if isinstance(one, ast.Call)}


def _is_float16(autocast: Call) -> bool:
    """Whether it surely is for CUDA and float16, its type for CUDA unless another one is given."""
    given = {word.arg: word.value for word in autocast.node.keywords}
    first = [*autocast.node.args, *([given["device_type"]] if "device_type" in given else [])][:1]
    of_cuda = autocast.name == AUTOCASTS[-1] or (
        bool(first) and isinstance(first[0], ast.Constant) and first[0].value == "cuda"
    )
    if not of_cuda or given.keys() - {"device_type", "dtype", "cache_enabled"}:
        return False
    if len(autocast.node.args) > (autocast.name != AUTOCASTS[-1]):
        return False
    return "dtype" not in given or autocast.scope.names.of(given["dtype"]) in FLOAT16


def half_models(program: Program) -> Iterator[Call]:
    """What turns the weights of a trained model to float16; none, where others may be kept."""
    named = " ".join(call.name or call.method for call in program.calls).lower()
    if any(word in named for word in KEEPS):
        return
    for call in program.calls:
        given = [*call.node.args, *(word.value for word in call.node.keywords)]
        to_half = call.method == "to" and any(call.scope.names.of(one) in FLOAT16 for one in given)
        turns = to_half or (call.method == "half" and not given)
        if turns and call.on and (_is_wrapped(call, program) or _has_optimizer(call, program)):
            yield call


def _is_wrapped(call: Call, program: Program) -> bool:
    """Whether DDP or FSDP gets the model in the same function."""
    return any(
        one.scope is call.scope and one.node.args and variable(one.node.args[0]) == call.on
        for name in WRAPPERS
        for one in program.by_name.get(name, ())
    )


def _has_optimizer(call: Call, program: Program) -> bool:
    return is_trained(call.on, call.scope, program, MOST_STEPS)
