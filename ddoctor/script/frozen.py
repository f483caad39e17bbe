"""Re-entrant checkpoints of a frozen model with adapters, whose inputs need no gradient.

A re-entrant checkpoint passes gradients on only if an input of its block needs one. The output of
a frozen embedding needs none, so the adapters within the blocks get none.
"""

# Above 150 lines: a model is frozen at once, by a loop, by its names, or by a function, and a
# variable follows it through functions.

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain

from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Block, Call, Scope, Statement

MOST_STEPS = 4
"""Functions and variables that are followed back to where a model is first held."""
ENABLES = "gradient_checkpointing_enable"
NEEDS_GRADIENTS = re.compile(
    r"enable_input_require_grads|requires?_grads?_hook|inputs?_requires?_grads?|"
    r"prepare_model_for_\w*training|register_forward(_pre)?_hook|add_adapter"
)
"""Names of what gives the inputs of the blocks a gradient, and of what may do so."""
ADAPTS = re.compile(r"lora|adapter|dora\b|ia3|peft", re.IGNORECASE)
REENTRANT = re.compile(r"use_reentrant['\"]?\s?[:=]\s?True")


def reentrant(program: Program) -> Iterator[tuple[Call, ast.AST, Scope]]:
    """The calls that switch such checkpoints on, each with what freezes the model."""
    asked = [call for call in program.calls if call.method == ENABLES and _is_reentrant(call)]
    if not asked or _gives_gradients(program):
        return
    freezes = [*_frozen(program)]
    for call in asked:
        if not isinstance(call.node.func, ast.Attribute):
            continue
        model = _holder(call.node.func.value, call.scope, program)
        for held, node, scope, adapts in freezes:
            if held == model and (adapts or _is_adapted(model, program)):
                yield call, node, scope
                break
        else:
            wrapped = _by_peft(call)
            if wrapped is not None:
                yield call, wrapped, call.scope


def _is_reentrant(call: Call) -> bool:
    given = (*call.node.args, *(word.value for word in call.node.keywords))
    shown = (one for part in given for one in (part, *call.scope.shown(variable(part))))
    return any(
        REENTRANT.search(source(one)) for one in shown if isinstance(one, ast.Dict | ast.Call)
    )


def _gives_gradients(program: Program) -> bool:
    """Whether the script may let the inputs of blocks, or other parts, need a gradient."""
    named = (call.method for call in program.calls)
    given = (own_name(one) for call in program.calls for one in call.node.args)
    if any(NEEDS_GRADIENTS.search(name) for name in chain(named, given)):
        return True
    return any(
        not ADAPTS.search(source(target)) and not (tests and all(map(_by_adapters, tests)))
        for target, tests in _unfrozen(program)
    )


def _unfrozen(program: Program) -> Iterator[tuple[ast.AST, list[ast.expr]]]:
    """What gets gradients again, with the tests around it."""
    for statement in program.statements:
        target, value = _flag(statement)
        if target is not None and isinstance(value, ast.Constant) and value.value is True:
            yield target, [one.test for one in statement.around if one.test is not None]
    for call in program.calls:
        if call.method == "requires_grad_" and not _switches_off(call):
            yield call.node.func, [one.test for one in call.around if one.test is not None]


def _switches_off(call: Call) -> bool:
    given = (*call.node.args, *(word.value for word in call.node.keywords))
    return any(isinstance(one, ast.Constant) and one.value is False for one in given)


def _flag(statement: Statement) -> tuple[ast.expr | None, ast.expr | None]:
    """The object and the value of ``parameter.requires_grad = value``."""
    node = statement.node
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
        return target.value, node.value  # type: ignore[attr-defined]
    return None, None


Held = tuple[Scope, str]
Frozen = tuple[Held, ast.AST, Scope, bool]


def _frozen(program: Program) -> Iterator[Frozen]:
    """The models that are frozen as a whole, or up to their adapters, which ``bool`` says."""
    for call in program.calls:
        if call.method != "requires_grad_" or not _switches_off(call):
            continue
        model = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
        if model is not None:
            yield from _of(model, call.node, call.scope, call.around, program)
    for statement in program.statements:
        target, value = _flag(statement)
        if target is None or value is None:
            continue
        by_name = _by_adapters(value)
        if by_name or (isinstance(value, ast.Constant) and value.value is False):
            around = statement.around
            for held, node, scope, adapts in _of(
                target, statement.node, statement.scope, around, program
            ):
                yield held, node, scope, adapts or by_name


def _by_adapters(test: ast.expr) -> bool:
    """Whether a test chooses by the names of adapters, and by no other names."""
    texts = [one.value for one in ast.walk(test) if isinstance(one, ast.Constant)]
    names = [one for one in texts if isinstance(one, str)] or [source(test)]
    return all(map(ADAPTS.search, names))


def _of(
    target: ast.expr, node: ast.AST, scope: Scope, around: tuple[Block, ...], program: Program
) -> Iterator[Frozen]:
    """The model whose parameters a statement freezes, unless a test chooses some of them."""
    tests = [one.test for one in around if one.kind == "condition" and one.test is not None]
    by_name = bool(tests) and all(map(_by_adapters, tests))
    if tests and not by_name:
        return
    loops = [one.node for one in around if isinstance(one.node, ast.For)]
    for loop in reversed(loops):
        if {variable(target)} & {*map(variable, ast.walk(loop.target))}:
            parts = loop.iter
            name = own_name(parts.func) if isinstance(parts, ast.Call) else ""
            if name in ("parameters", "named_parameters") and isinstance(parts, ast.Call):
                target = parts.func.value if isinstance(parts.func, ast.Attribute) else target
                yield _holder(target, scope, program), node, scope, by_name
            return
    if variable(target):
        yield _holder(target, scope, program), node, scope, by_name


def _holder(value: ast.expr, scope: Scope, program: Program) -> Held:
    """The function and the variable that first hold an object, as far as the source shows it."""
    name = variable(value)
    for _ in range(MOST_STEPS):
        if not name or name.startswith("self."):
            break
        passed = program.passed(scope)
        caller = program.caller(scope)
        values = scope.shown(name)
        if name in passed and caller is not None:
            given = variable(passed[name])
            if not given:
                break
            name, scope = given, caller.scope
            continue
        made = values[0] if values else None
        if isinstance(made, ast.Name):
            name = made.id
            continue
        inner = next((one for one in scope.calls if one.node is made), None)
        called = program.called(inner) if inner is not None else None
        results = {*map(variable, program.results(called))} if called is not None else set()
        if called is None or len(results) != 1 or not (result := results.pop()):
            break
        name, scope = result, called
    holds = scope
    while name and name not in holds.variables and holds.outer is not None:
        holds = holds.outer
    return holds, name


def _is_adapted(model: Held, program: Program) -> bool:
    """Whether a function gets the model and puts adapters into it."""
    for call in program.calls:
        given = (*call.node.args, *(one.value for one in call.node.keywords))
        if not any(variable(one) and _holder(one, call.scope, program) == model for one in given):
            continue
        called = program.called(call)
        names = [call.method, *(one.method for one in called.calls)] if called is not None else []
        if any(map(ADAPTS.search, names or [call.method])):
            return True
    return False


def _by_peft(call: Call) -> ast.AST | None:
    """What puts adapters around the variable before; peft cares for earlier checkpoints."""
    name = call.on
    for one in call.scope.calls:
        made = isinstance(one.statement, ast.Assign) and one.statement.value is one.node
        if (
            one.name == "peft.get_peft_model"
            and made
            and variable(one.statement.targets[0]) == name  # type: ignore[attr-defined]
            and one.node.lineno < call.node.lineno
        ):
            return one.node
    return None
