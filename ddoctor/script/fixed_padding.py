"""Where a script pads each sample to a fixed length, whatever the longest of its batch is."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.same import given_to
from ddoctor.script.scopes import Call, Scope, Statement

TO_THE_MOST = "max_length"
"""Of ``padding=`` of a tokenizer: to its own or the model's greatest length."""
OF_PROMPTS = "diffusers"
"""Its models take prompts of one length."""
TOKENS = "input_ids"
FILLS = frozenset({"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full"})
ITEM = "__getitem__"
BATCH = 1
"""A collate function gets the samples first; its other arguments are the same for all batches."""


def fixed_padding(program: Program) -> Iterator[Call | Statement]:
    """The calls and assignments that pad, in what makes samples or batches."""
    if not any(OF_PROMPTS in scope.module.nodes.packages for scope in program.scopes):
        yield from filter(_pads_to_the_most, program.calls)
    collating = _collating(program)
    makes = {one for one in program.scopes if _makes_batches(one, collating)}
    tokens = {one.scope for one in program.statements if _returns_tokens(one)}
    makes |= {one for one in tokens if _gets_fixed_lengths(one, program)}
    for call in program.calls:
        if call.scope in makes and call.name.endswith(".pad") and _adds_up(call.node.args, call):
            yield call
    for statement in program.statements:
        if statement.scope in makes and (_adds(statement) or _fills(statement, program)):
            yield statement


def _pads_to_the_most(call: Call) -> bool:
    """Whether a tokenizer pads so, but to what its model was made for, or on some devices only."""
    given = {word.arg: word.value for word in call.node.keywords}
    padding, length = given.get("padding"), given.get("max_length")
    of_model = isinstance(length, ast.Attribute) and length.attr == "model_max_length"
    some = any(block.kind == "condition" for block in call.around)
    to_most = isinstance(padding, ast.Constant) and padding.value == TO_THE_MOST
    return to_most and not (of_model or some)


def _collating(program: Program) -> frozenset[str]:
    """The names of the functions and classes that loaders get as their ``collate_fn``."""
    given = (
        word.value
        for call in program.calls
        for word in call.node.keywords
        if word.arg == "collate_fn"
    )
    # Of ``partial(collate, …)`` and ``Collator(…)``, too.
    return frozenset(own_name(part) for one in given for part in ast.walk(one)) - {""}


def _makes_batches(scope: Scope, collating: frozenset[str]) -> bool:
    owner, _, name = scope.name.rpartition(".")
    makes = name in {ITEM, *collating} or (name == "__call__" and owner in collating)
    return makes and not any(map(_is_window, ast.walk(scope.node)))


def _returns_tokens(statement: Statement) -> bool:
    """Whether a function returns what transformers' models take, as a tokenizer does."""
    value = statement.node.value if isinstance(statement.node, ast.Return) else None
    keys = value.keys if isinstance(value, ast.Dict) else ()
    return any(isinstance(one, ast.Constant) and one.value == TOKENS for one in keys)


def _gets_fixed_lengths(scope: Scope, program: Program) -> bool:
    """Whether no call gives it the length of a batch."""
    return all(
        value is not None and (_is_fixed(value, where) or where is scope)
        for name in _arguments(scope)
        if "len" in name
        for value, where in given_to(name, scope, program)
    )


def _is_window(node: ast.AST) -> bool:
    """Whether it takes a part of fixed length out of the middle: shorter samples are rare then."""
    if not isinstance(node, ast.Slice) or node.lower is None:
        return False
    upper = node.upper
    return isinstance(upper, ast.BinOp) and ast.dump(upper.left) == ast.dump(node.lower)


def _adds_up(given: Sequence[ast.expr], call: Call) -> bool:
    """Whether a call of ``torch.nn.functional.pad`` adds what is missing to a fixed length."""
    return len(given) > 1 and any(_misses(one, call.scope) for one in ast.walk(given[1]))


def _adds(statement: Statement) -> bool:
    """Whether it adds to a list what is missing, as ``ids + [pad] * (512 - len(ids))``."""
    if not isinstance(statement.node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
        return False
    return any(
        isinstance(one, ast.BinOp)
        and isinstance(one.op, ast.Mult)
        and any(isinstance(side, ast.List) for side in (one.left, one.right))
        and any(_misses(side, statement.scope) for side in (one.left, one.right))
        for one in ast.walk(statement.node)
    )


def _misses(node: ast.AST, scope: Scope) -> bool:
    """Whether it is a fixed length, less that of a sample, or a variable with nothing else."""
    shown = scope.shown(node.id) if isinstance(node, ast.Name) else ()
    if len(shown) == 1 and isinstance(shown[0], ast.BinOp):
        node = shown[0]
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and _is_fixed(node.left, scope)
        and not _is_fixed(node.right, scope)
    )


def _fills(statement: Statement, program: Program) -> bool:
    """Whether it makes a tensor of a fixed length, of which each sample fills the beginning."""
    node, scope = statement.node, statement.scope
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return False
    name = variable(node.targets[0])
    if not name or own_name(node.value.func) not in FILLS:
        return False
    lengths = _lengths(node.value)
    return any(
        at < len(lengths) and _is_fixed(lengths[at], scope)
        for one in program.statements
        if one.scope is scope and isinstance(one.node, ast.Assign)
        for target in one.node.targets
        if isinstance(target, ast.Subscript) and variable(target.value) == name
        for at in _cut(target.slice, scope)
    )


def _lengths(made: ast.Call) -> Sequence[ast.expr]:
    """The lengths of a new tensor, given one by one or as a tuple."""
    first = made.args[0] if made.args else None
    return first.elts if isinstance(first, ast.Tuple | ast.List) else made.args


def _cut(index: ast.expr, scope: Scope) -> Iterator[int]:
    """The dimensions of which an index takes as much from the beginning as a sample has."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    for number, part in enumerate(parts):
        upper = part.upper if isinstance(part, ast.Slice) and part.lower is None else None
        if upper is not None and not _is_fixed(upper, scope):
            yield number


def _is_fixed(node: ast.expr, scope: Scope) -> bool:
    """Whether a length is surely none of a sample or of a batch."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    if isinstance(node, ast.Attribute):
        return _of_an_object(node)
    if isinstance(node, ast.BinOp):
        return _is_fixed(node.left, scope) and _is_fixed(node.right, scope)
    if not isinstance(node, ast.Name):
        return False
    if node.id not in scope.variables:
        return True
    if node.id in _arguments(scope):
        return scope.variables[node.id] == [None]
    values = scope.shown(node.id)
    return bool(values) and all(
        isinstance(one, ast.Constant) or (isinstance(one, ast.Attribute) and _of_an_object(one))
        for one in values
    )


def _of_an_object(node: ast.Attribute) -> bool:
    """Such as ``self.length`` or ``args.model.length``; a shape is that of a tensor."""
    return bool(variable(node)) and node.attr not in {"shape", "size", "ndim"}


def _arguments(scope: Scope) -> Iterable[str]:
    """The arguments of a collate function that are no samples."""
    function = scope.node
    if not isinstance(function, ast.FunctionDef) or scope.name.endswith(ITEM):
        return ()
    given = function.args
    first = BATCH + (given.args[:1] != [] and given.args[0].arg == "self")
    return [one.arg for one in chain(given.args[first:], given.kwonlyargs)]
