"""Single layers that FSDP wraps one by one, each as a unit of collectives."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.stale_optimizers import FSDP1, FSDP2

LAYERS = frozenset(
    f"torch.nn.{name}"
    for name in ("Linear", "LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm2d", "Conv1d", "Conv2d")
)
"""Embeddings are none: one may be as large as many layers, and well worth a unit."""
POLICY = "torch.distributed.fsdp.wrap.ModuleWrapPolicy"
OF_LAYERS = "transformer_layer_cls"
EVERY = ("modules", "named_modules")


def leaf_units(program: Program) -> Iterator[Call]:
    """The calls that wrap layers of torch as such, and nothing else in the same loop."""
    for call in program.calls:
        if call.name in (FSDP1, FSDP2) and call.loops and _of_layers(call):
            yield call
        given = [*call.node.args[:1]] if call.name == POLICY else []
        given += [word.value for word in call.node.keywords if word.arg == OF_LAYERS]
        if any(_are_layers(one, call.scope) for one in given):
            yield call


def _of_layers(call: Call) -> bool:
    """Whether the loop goes through all modules of a model, and a test picks layers of torch."""
    loop = call.loops[-1].node
    goes = loop.iter.func if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) else None
    wrapped = variable(call.node.args[0]) if call.node.args else ""
    tests = [block.test for block in call.around if block.test is not None]
    if not isinstance(goes, ast.Attribute) or goes.attr not in EVERY or len(tests) != 1:
        return False
    (test,) = tests
    return (
        isinstance(test, ast.Call)
        and variable(test.func) == "isinstance"
        and len(test.args) == 2
        and variable(test.args[0]) == wrapped
        and _are_layers(test.args[1], call.scope)
    )


def _are_layers(given: ast.expr, scope: Scope) -> bool:
    several = isinstance(given, ast.Tuple | ast.List | ast.Set)
    names = [scope.names.of(one) for one in (given.elts if several else [given])]  # type: ignore[attr-defined]
    return bool(names) and LAYERS.issuperset(names)
