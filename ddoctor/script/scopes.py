"""The functions of a script's modules, what their variables are assigned from, and their calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ddoctor.blocks import Function
from ddoctor.evidence.source_lines import Within
from ddoctor.evidence.source_text import children
from ddoctor.loop_exits import Loop
from ddoctor.script.modules import Module
from ddoctor.script.names import NOTHING, Marks, Names, variable
from ddoctor.script.ranks import kind_of, lower, own_name

RANK_TESTS: frozenset[Within] = frozenset({"one-rank", "other-ranks", "some-ranks"})
LEAVES = (ast.Return, ast.Continue, ast.Break)
"""What ends a body so that only others come to what follows. An error ends the run instead."""
CHANGES = (ast.AugAssign, ast.For, ast.AsyncFor, ast.comprehension)
"""What gives a variable a value that no expression shows."""
BINDS = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.withitem, *CHANGES)
"""What gives a variable any value."""
LEAVING = ("exit", "_exit")
MAIN_FIRST = (
    *("main_process_first", "local_main_process_first", "rank_zero_first", "zero_first"),
    *("torch_distributed_zero_first", "main_first"),
)
"""Contexts that the main process enters before the others."""


@dataclass(frozen=True, eq=False)
class Block:
    """A loop, a branch or a context that contains a call."""

    kind: Within
    node: ast.AST
    test: ast.expr | None = None
    rest: bool = False
    """Whether it is what follows a branch that leaves the function or the loop."""
    shown: ast.expr | None = None
    """Of ``rest``: the test without ``not``; of a variable, what it is assigned from."""
    negated: bool = False
    """Whether the test is false there."""


@dataclass(eq=False)
class Scope:
    """A function, a method, or the top level of a module."""

    module: Module
    names: Names
    node: ast.AST
    name: str = ""
    owner: str = ""
    """The full name of its class."""
    outer: Scope | None = None
    attributes: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    """What ``self.name`` is assigned from: one table for all methods of a class."""
    variables: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    """None stands for a value that no expression shows, such as an argument."""
    inner: dict[str, Scope] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    guarded: bool = False
    """Whether a decorator, or what contains its definition, tests the rank."""

    @property
    def full_name(self) -> str:
        """Its name with that of the module."""
        return f"{self.module.name}.{self.name}"

    def contains(self, node: ast.expr) -> bool:
        """Whether an expression of the same module is within the lines of this function."""
        first: int = self.node.lineno  # type: ignore[attr-defined]
        last: int = self.node.end_lineno or first  # type: ignore[attr-defined]
        return first <= node.lineno <= last

    def holder(self, name: str) -> object:
        """What has a variable: the attributes of a class, or a function; None: neither."""
        if name.startswith("self."):
            return id(self.attributes)
        scope: Scope | None = self
        while scope is not None and name not in scope.variables:
            scope = scope.outer
        return scope

    def assigned(self, name: str) -> Sequence[ast.expr | None]:
        """What a variable is assigned from, in this function or around it; empty: unknown."""
        if name.startswith("self."):
            return self.attributes.get(name, ())
        scope: Scope | None = self
        while scope is not None:
            if name in scope.variables:
                return scope.variables[name]
            scope = scope.outer
        return ()

    def named(self, function: ast.expr) -> str:
        """The full name of what is called, also by a variable such as ``Loader = DataLoader``.

        Where the source chooses between several, the one for distributed runs.
        """
        name = self.names.of(function)
        if name and not name.startswith("."):
            return name
        own = variable(function)
        values = [part for value in self.shown(own) for part in _choices(value)] if own else ()
        known = [one for value in values if variable(value) and (one := self.names.of(value))]
        if len(known) == len(values) and len(set(known)) == 1:
            name = known[0]
        chosen = (one for one in known if one.rpartition(".")[2].startswith("Distributed"))
        return next(chosen, name)

    def shown(self, name: str) -> Sequence[ast.expr]:
        """The same where expressions show all of it."""
        values = self.assigned(name)
        if not values and "." in name:
            # An attribute of another object: what the classes of the script know by its name.
            return self.names.marks.get(name.rpartition(".")[2], ())
        return [value for value in values if value is not None] if None not in values else ()


@dataclass(frozen=True, eq=False)
class Call:
    """A call, with what contains it in its function."""

    node: ast.Call
    scope: Scope
    around: tuple[Block, ...]
    statement: ast.stmt
    name: str

    @cached_property
    def method(self) -> str:
        """The last part of its name."""
        return own_name(self.node.func)

    @property
    def on(self) -> str:
        """The variable whose method it is; empty: no variable."""
        return variable(self.receiver) if self.receiver is not None else ""

    @property
    def receiver(self) -> ast.expr | None:
        """The object whose method it is; None: it is no method."""
        return self.node.func.value if isinstance(self.node.func, ast.Attribute) else None

    @property
    def loops(self) -> Sequence[Block]:
        """The loops around it, the outermost first."""
        return [block for block in self.around if block.kind == "loop"]

    @property
    def tests_rank(self) -> bool:
        """Whether a branch around it tests the rank."""
        return any(block.kind in RANK_TESTS for block in self.around)


@dataclass(frozen=True, eq=False)
class Statement:
    """An assignment or another statement, with what contains it."""

    node: ast.stmt
    scope: Scope
    around: tuple[Block, ...]


class Walk:
    """All scopes, calls and statements of a module."""

    def __init__(self, module: Module, marks: Marks = NOTHING) -> None:
        self.scopes: list[Scope] = []
        self.statements: list[Statement] = []
        self.classes: list[tuple[ast.ClassDef, Scope]] = []
        self._of: dict[ast.AST, Scope] = {}
        top = self._scope(Scope(module, Names(module, marks), module.tree))
        self._collect(module.tree, top, "")
        self._body(module.tree.body, top, ())

    def _scope(self, scope: Scope) -> Scope:
        self.scopes.append(scope)
        self._of[scope.node] = scope
        return scope

    # First all variables: a function may use what the module assigns after it.

    def _collect(self, node: ast.AST, scope: Scope, owner: str) -> None:
        for part in children(node):
            if isinstance(part, Function):
                name = f"{owner.rpartition('.')[2]}.{part.name}" if owner else part.name
                inner = self._scope(
                    Scope(scope.module, scope.names, part, name, owner, scope, scope.attributes)
                )
                scope.inner[part.name] = inner
                for one in ast.walk(part.args):
                    if isinstance(one, ast.arg):
                        inner.variables[one.arg] = [None]
                self._collect(part, inner, "")
            elif isinstance(part, ast.ClassDef):
                self.classes.append((part, scope))
                around = Scope(scope.module, scope.names, part, scope.name, "", scope, {})
                self._collect(part, around, f"{scope.module.name}.{part.name}")
            else:
                if isinstance(part, BINDS):
                    _assign(part, scope)
                self._collect(part, scope, owner)

    def _body(self, body: Sequence[ast.stmt], scope: Scope, around: tuple[Block, ...]) -> None:
        for node in body:
            self.statements.append(Statement(node, scope, around))
            self._statement(node, scope, around)
            around = (*around, *_rest(node, scope))

    def _statement(self, node: ast.stmt, scope: Scope, around: tuple[Block, ...]) -> None:
        if isinstance(node, Function):
            self._function(node, scope, around)
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                self._statement(one, scope, around)
        elif isinstance(node, ast.If):
            self._expression(node.test, node, scope, around)
            body = around
            if not _is_main_guard(node.test):
                kind = kind_of(node.test, scope.shown)
                body = (*around, Block(kind, node, node.test))
                other = kind_of(node.test, scope.shown, negated=True)
                otherwise = Block(other, node, node.test, negated=True)
                self._body(node.orelse, scope, (*around, otherwise))
            self._body(node.body, scope, body)
        elif isinstance(node, Loop):
            for part in children(node):
                if isinstance(part, ast.expr):
                    self._expression(part, node, scope, around)
            self._body(node.body, scope, (*around, Block("loop", node)))
            self._body(node.orelse, scope, around)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self._expression(item.context_expr, node, scope, around)
            self._body(node.body, scope, (*around, *_contexts(node)))
        elif isinstance(node, ast.Try):
            self._body(node.body, scope, around)
            for handler in node.handlers:
                self._body(handler.body, scope, (*around, Block("condition", handler)))
            self._body([*node.orelse, *node.finalbody], scope, around)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                self._body(case.body, scope, (*around, Block("condition", case)))
        else:
            for part in children(node):
                self._expression(part, node, scope, around)

    def _function(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        scope: Scope,
        around: tuple[Block, ...],
    ) -> None:
        inner = self._of[node]
        defined = any(block.kind in RANK_TESTS for block in around)
        inner.guarded = scope.guarded or defined or any(map(_for_ranks, node.decorator_list))
        still = [one for one in node.decorator_list if _has(one, "no_grad", "inference_mode")]
        alone = [one for one in node.decorator_list if _for_one_rank(one)]
        blocks = (
            *(Block("no-grad", one) for one in still),
            *(Block("one-rank", one) for one in alone),
        )
        self._body(node.body, inner, blocks)

    def _expression(
        self, node: ast.AST, statement: ast.stmt, scope: Scope, around: tuple[Block, ...]
    ) -> None:
        if isinstance(node, ast.IfExp):
            self._expression(node.test, statement, scope, around)
            for value, negated in ((node.body, False), (node.orelse, True)):
                kind = kind_of(node.test, scope.shown, negated=negated)
                block = Block(kind, node, node.test, negated=negated)
                self._expression(value, statement, scope, (*around, block))
            return
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            for value in node.values:
                self._expression(value, statement, scope, around)
                around = (*around, Block(kind_of(value, scope.shown), node, value))
            return
        for part in children(node):
            self._expression(part, statement, scope, around)
        if isinstance(node, ast.Call):
            # In the order of the run: what a call gets is called before.
            name = scope.named(node.func)
            scope.calls.append(Call(node, scope, around, statement, name))


def _choices(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.IfExp):
        yield from _choices(value.body)
        yield from _choices(value.orelse)
    else:
        yield value


def _assign(node: ast.AST, scope: Scope) -> None:
    for name, value in assignments(node):
        table = scope.attributes if name.startswith("self.") else scope.variables
        table.setdefault(name, []).append(value)


def assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The variables and attributes that a statement assigns, each with its value.

    None stands for a value that no expression shows.
    """
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from _pairs(node.target, node.value)
    elif isinstance(node, CHANGES):
        yield from _pairs(node.target, None)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _pairs(node.optional_vars, None)


def _pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Tuple | ast.List):
        values: Sequence[ast.expr | None] = [None] * len(target.elts)
        if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            values = value.elts
        for one, part in zip(target.elts, values, strict=True):
            yield from _pairs(one, part)
    elif name := variable(target):
        yield name, value


def _rest(node: ast.stmt, scope: Scope) -> Iterator[Block]:
    """What follows a branch that leaves is for those that do not enter it."""
    if isinstance(node, ast.If) and not node.orelse and _leaves(node.body):
        kind = kind_of(node.test, scope.shown, negated=True)
        yield Block(kind, node, node.test, rest=True, negated=True, shown=_behind(node.test, scope))


def _behind(test: ast.expr, scope: Scope) -> ast.expr:
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    shown = scope.shown(variable(test)) if variable(test) else ()
    return shown[0] if len(shown) == 1 else test


def _leaves(body: Sequence[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return _has(last.value.func, *LEAVING)
    return isinstance(last, LEAVES)


def _contexts(node: ast.With | ast.AsyncWith) -> Iterator[Block]:
    for item in node.items:
        if _has(item.context_expr, "no_grad", "inference_mode"):
            yield Block("no-grad", node)
        if _has(item.context_expr, "no_sync"):
            yield Block("no-sync", node)
        if _has(item.context_expr, *MAIN_FIRST):
            yield Block("main-first", node)


def _has(node: ast.AST, *names: str) -> bool:
    return any(
        getattr(part, "attr", None) in names or getattr(part, "id", None) in names
        for part in ast.walk(node)
    )


def _for_one_rank(decorator: ast.AST) -> bool:
    """Such as ``rank_zero_only``, ``master_only`` or ``accelerator.on_main_process``."""
    found = {word for part in ast.walk(decorator) for word in lower(own_name(part))}
    only = "only" in found or {"on", "main"} <= found
    return _for_ranks(decorator) and only


def _for_ranks(decorator: ast.AST) -> bool:
    """Such as ``rank_zero_only``, ``on_main_process`` or ``on_main``; ``hydra.main`` is none."""
    found = {word for part in ast.walk(decorator) for word in lower(own_name(part))}
    of_main = "main" in found and bool(found & {"process", "on", "only", "is"})
    return bool(found & {"rank", "master"}) or of_main


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and variable(test.left) == "__name__"
