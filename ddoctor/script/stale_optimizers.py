"""Optimizers that hold the parameters which a model had before FSDP replaced them.

FSDP1 flattens the parameters and FSDP2 makes DTensors of them; torch's documents of both tell to
make the optimizer afterwards (torch/distributed/fsdp/fully_sharded_data_parallel.py,
``use_orig_params``; torch/distributed/fsdp/_fully_shard/_fully_shard.py, ``fully_shard``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddoctor.script.call_order import follows, precedes
from ddoctor.script.made_models import makers
from ddoctor.script.names import variable
from ddoctor.script.program import Program, assigned
from ddoctor.script.scopes import Call, Scope

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
FSDP2 = "torch.distributed.fsdp.fully_shard"
OF_TORCH = re.compile(r"torch\.optim\.[A-Z]\w*")
OPTIMIZERS = re.compile(r"\w*(?:Adam|SGD|Lion|Adafactor|Muon|Shampoo|LAMB|Adagrad|RMSprop)\w*")
"""Classes of optimizers that other packages have."""
PARAMETERS = ("parameters", "named_parameters")
RENEWS = "add_param_group"
"""It gives an optimizer other parameters."""
MOST_STEPS = 4
"""Variables and functions that are followed from an optimizer to the model."""


def stale_optimizers(program: Program) -> Iterator[tuple[Call, Call]]:
    """The optimizers, each with the wrapping of its model that comes after it.

    Nothing, unless every optimizer is made before every wrapping: one of another function may
    replace what came first.
    """
    made = [call for call in program.calls if makes_optimizer(call)]
    wraps = [call for call in program.calls if call.name in (FSDP1, FSDP2)]
    if not made or not wraps or any(map(_keeps, wraps)) or renews(program):
        return
    # Layers may be divided before, by a loop over them: the rest of the model is so at its end.
    wraps = [wrap for wrap in wraps if wrap.name == FSDP1 or not wrap.loops] or wraps
    if not all(precedes(one, wrap, program) for one in made for wrap in wraps):
        return
    for one in made:
        trained = _trained(one, program)
        for wrap in wraps:
            given = _given(wrap.node, "module")
            known = given is not None and follows(wrap, one, program)
            if given is not None and known and trained & makers(given, wrap.scope, program):
                yield one, wrap
                break


def makes_optimizer(call: Call) -> bool:
    of_torch = OF_TORCH.fullmatch(call.name) is not None
    return of_torch or (
        OPTIMIZERS.fullmatch(call.method) is not None and not call.name.startswith("torch.")
    )


def _keeps(wrap: Call) -> bool:
    """Whether FSDP1 may keep the parameters that the optimizer has."""
    words = {word.arg: word.value for word in wrap.node.keywords}
    kept = words.get("use_orig_params", ast.Constant(False))
    return None in words or not (isinstance(kept, ast.Constant) and kept.value is False)


def renews(program: Program) -> bool:
    """Whether something may make the optimizer again: a helper of a package, or its groups."""
    for call in program.calls:
        makes = "optimizer" in call.method.lower() and "state" not in call.method
        unknown = program.called(call) is None and not call.name.startswith("torch.")
        if call.method == RENEWS or (makes and unknown and not call.method.startswith("zero")):
            return True
    if any(name.endswith(".param_groups") for _, name in program.variables):
        return True
    return any(_is_key(one) for each in program.statements for one in assigned(each.node))


def trained_names(optimizer: Call) -> Iterator[str]:
    """The models whose parameters the call gives to the optimizer, as the source writes them."""
    for part in ast.walk(optimizer.node):
        function = part.func if isinstance(part, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr in PARAMETERS:
            yield variable(function.value)


def _is_key(target: ast.expr) -> bool:
    """Whether it is such as ``group["params"]``."""
    key = target.slice if isinstance(target, ast.Subscript) else None
    return isinstance(key, ast.Constant) and key.value == "params"


def _given(call: ast.Call, name: str) -> ast.expr | None:
    named = next((word.value for word in call.keywords if word.arg == name), None)
    return call.args[0] if call.args else named


def _trained(optimizer: Call, program: Program) -> frozenset[ast.AST]:
    """What makes the models whose parameters an optimizer gets."""
    given = _given(optimizer.node, "params")
    found = _models(given, optimizer.scope, program, MOST_STEPS) if given is not None else ()
    every = (makers(model, scope, program) for model, scope in found)
    return frozenset(one for each in every for one in each)


def _models(
    node: ast.expr, scope: Scope, program: Program, steps: int
) -> Iterator[tuple[ast.expr, Scope]]:
    """The models in ``model.parameters()``, also by a variable or by a function that groups."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Call):
            continue
        if isinstance(part.func, ast.Attribute) and part.func.attr in PARAMETERS:
            yield part.func.value, scope
        if steps and (inner := program.function(part)):
            for call in inner.calls:
                yield from _models(call.node, inner, program, steps - 1)
    for named in _groups(node) if steps else ():
        for value, where in program.values(named, scope):
            yield from _models(value, where, program, steps - 1)


def _groups(node: ast.expr) -> Iterator[ast.expr]:
    """The variables in a list of parameter groups, or the given one."""
    if isinstance(node, ast.List | ast.Tuple | ast.Dict):
        for part in node.values if isinstance(node, ast.Dict) else node.elts:
            yield from _groups(part)
    elif variable(node):
        yield node
