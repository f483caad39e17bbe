"""Where a script adds trained weights to the layers of a model that it freezes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.scopes import Block, Scope

MODULE = "torch.nn.Module"
INSERTS = ("setattr", "add_module", "register_module")
COPIES = ("list", "tuple", "enumerate", "reversed", "dict", "sorted")
MARKS = "mark_only_lora_as_trainable"
INNER = r"(?:(?:self_)?att(?:ention|n)|mlp|ffn|feed_forward|[qkvo]_proj|(?:gate|up|down)_proj|bias)"
BY_NAME = re.compile(
    rf"['\"](?:[\w.]*lora[\w.]*|\.?{INNER}\.?)['\"] (?:not )?in |(?:with|any)\(.*['\"][\w.]*lora",
    re.IGNORECASE,
)
"""In a test of a parameter's name: a part of each layer; LoRA's weights are in what they adapt."""


@dataclass(frozen=True)
class _Change:
    """A statement that freezes, thaws or adds weights."""

    node: ast.AST
    scope: Scope
    target: str
    """What it changes, as the source writes it."""
    trained: str = ""
    """The class of the layers that it selects, where it is known."""


@dataclass(frozen=True)
class Mixed:
    """Layers with frozen and trained weights."""

    node: ast.AST
    scope: Scope
    """What adds the trained ones, or selects them."""
    trained: str
    """The class that is added, where it is known."""


def mixed_layers(program: Program) -> Iterator[Mixed]:
    """The layers that get trained weights after their model was frozen."""
    for call in program.calls:
        if call.method == MARKS:
            yield Mixed(call.node, call.scope, "")
    changes = [*_changes(program)]
    frozen = [one for one, kind in changes if kind == "freezes"]
    thawed = {one.target for one, kind in changes if kind == "thaws"}
    by_name = (one for one, kind in changes if kind == "by-name")
    yield from (Mixed(one.node, one.scope, one.trained) for one in by_name)
    for one, trained in _inserted(program):
        before = [
            each
            for each in frozen
            if each.target not in thawed and _comes_first(each, one, program)
        ]
        if before:
            yield Mixed(one.node, one.scope, trained)


def _changes(program: Program) -> Iterator[tuple[_Change, str]]:
    for call in program.calls:
        if call.method == "requires_grad_" and _is_sure(call.scope, call.around, program):
            given = call.node.args[0] if call.node.args else ast.Constant(True)
            yield _change(call.node, call.on, given, call.scope, call.around, program)
    for statement in program.statements:
        node = statement.node
        target = variable(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if not isinstance(node, ast.Assign) or not target.endswith(".requires_grad"):
            continue
        if _is_sure(statement.scope, statement.around, program):
            on = target.removesuffix(".requires_grad")
            yield _change(node, on, node.value, statement.scope, statement.around, program)


def _is_sure(scope: Scope, around: tuple[Block, ...], program: Program) -> bool:
    """Whether no option decides it: tests in a loop over parameters or layers select some."""
    first = next((one.kind for one in around if one.kind in ("condition", "loop")), "loop")
    calls = program.calls_of(scope)
    chosen = [any(one.kind == "condition" for one in call.around) for call in calls]
    return first == "loop" and not (chosen and all(chosen))


def _change(
    node: ast.AST,
    on: str,
    value: ast.expr,
    scope: Scope,
    around: tuple[Block, ...],
    program: Program,
) -> tuple[_Change, str]:
    tests = [block.test for block in around if block.kind == "condition" and block.test]
    parts = (value, *tests)
    if any(BY_NAME.search(source(one)) for one in parts):
        return _Change(node, scope, on), "by-name"
    for trained in filter(None, (_part_of_a_block(one, program) for one in parts)):
        return _Change(node, scope, on, trained), "by-name"
    loops = [block.node for block in around if block.kind == "loop"]
    taken = loops[-1] if loops else None
    if isinstance(taken, ast.For) and variable(taken.target) == on:
        # `for parameter in model.parameters()`
        whole = taken.iter.func if isinstance(taken.iter, ast.Call) else taken.iter
        on = variable(whole).rpartition(".")[0] or on
    known = isinstance(value, ast.Constant) and not tests
    kind = "thaws" if getattr(value, "value", None) is True else "freezes"
    return _Change(node, scope, on), kind if known else "unknown"


def _part_of_a_block(test: ast.expr, program: Program) -> str:
    """The class of the layer that a name selects, as ``".adapter." in name`` does; empty: none.

    The layer is one of several of a block, and the script makes that block within another module.
    """
    for part in ast.walk(test):
        left = part.left if isinstance(part, ast.Compare) else None
        names = isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.In | ast.NotIn)
        if not names or not isinstance(left, ast.Constant) or not isinstance(left.value, str):
            continue
        for one in program.attributes.get(left.value.strip(".").rpartition(".")[2], ()):
            owner, made = one.scope.owner, one.value
            block = MODULE in program.bases.get(owner, ()) and one.name.startswith("self.")
            if block and isinstance(made, ast.Call) and _is_within(owner, program):
                trained = _own_module(made, one.scope, program)
                if trained and len(_layers_of(one.scope)) > 1:
                    return trained
    return ""


def _layers_of(init: Scope) -> set[str]:
    """The layers that a module makes, by their attributes."""
    return {
        name
        for name, values in init.attributes.items()
        for value in values
        if isinstance(value, ast.Call) and not init.names.of(value.func).startswith("torch.Tensor")
    }


def _is_within(owner: str, program: Program) -> bool:
    """Whether another module of the script makes objects of a class."""
    makers = (call.scope.owner for call in program.by_name.get(owner, ()))
    return any(one != owner and MODULE in program.bases.get(one, ()) for one in makers)


def _inserted(program: Program) -> Iterator[tuple[_Change, str]]:
    """What puts a module of the script into each layer, in a loop over layers."""
    for statement in program.statements:
        node = statement.node
        value = node.value if isinstance(node, ast.Assign | ast.Expr) else None
        if not isinstance(value, ast.Call):
            continue
        on, made = "", value
        if isinstance(node, ast.Assign):
            on = variable(node.targets[0]).rpartition(".")[0]
        elif variable(value.func).rpartition(".")[2] in INSERTS and len(value.args) > 1:
            last, function = value.args[-1], value.func
            owner = function.value if isinstance(function, ast.Attribute) else value.args[0]
            shown = statement.scope.shown(variable(last)) if variable(last) else ()
            last = shown[0] if len(shown) == 1 else last
            on, made = variable(owner), last if isinstance(last, ast.Call) else value
        loop = next((one.node for one in statement.around if one.kind == "loop"), None)
        if not isinstance(loop, ast.For) or on in ("", "self"):
            continue
        trained = _own_module(made, statement.scope, program)
        if trained and _is_sure(statement.scope, statement.around, program):
            yield _Change(node, statement.scope, _layers(loop.iter)), trained


def _layers(taken: ast.expr) -> str:
    """What a loop runs over: ``model.modules`` in ``list(model.modules())``."""
    while isinstance(taken, ast.Call) and variable(taken.func) in COPIES and taken.args:
        taken = taken.args[0]
    return variable(taken) or variable(getattr(taken, "func", taken))


def _own_module(made: ast.Call, scope: Scope, program: Program) -> str:
    """The class of the script that a call makes, where it is a module that makes layers."""
    name = scope.named(made.func)
    init = program.functions.get(f"{name}.__init__")
    if init is None or MODULE not in program.bases.get(name, ()):
        return ""
    makes = [init.named(call.node.func) for call in init.calls]
    layers = any(one.startswith("torch.nn.") or one in program.bases for one in makes)
    return name.rpartition(".")[2] if layers else ""


def _comes_first(freeze: _Change, insert: _Change, program: Program) -> bool:
    """Whether the weights that are added come after the others were frozen."""
    if freeze.scope is insert.scope:
        root = freeze.target
        covers = insert.target == root or insert.target.startswith(f"{root}.")
        return covers and _line(freeze.node) < _line(insert.node)
    for call in program.calls_of(insert.scope):
        inner = [one for one in program.calls_of(freeze.scope) if one.scope is call.scope]
        lines = [_line(one.node) for one in inner]
        lines += [_line(freeze.node)] * (freeze.scope is call.scope)
        if lines and max(lines) < _line(call.node):
            return True
    return False


def _line(node: ast.AST) -> int:
    line: int = node.lineno  # type: ignore[attr-defined]
    return line
