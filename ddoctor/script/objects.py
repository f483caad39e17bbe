"""Which class of the script an object is of, and so which of its functions a call runs."""

# Above 150 lines: an object reaches a call through many kinds of expressions.

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddoctor.script.names import variable
from ddoctor.script.scopes import Call, Scope, Statement, Walk, assignments

DEEPEST = 8
"""Expressions that are followed from a variable to the class of its value."""
ROUNDS = 3
"""A call that is resolved shows what the arguments of its function are, which resolves others."""
MOST_BASES = 8
SAME = ("to", "cuda", "cpu", "train", "eval", "compile")
"""Methods and functions that return the object itself."""

Classes = frozenset[str]
UNKNOWN: Classes = frozenset()


WRAPPERS, INNER = ("DistributedDataParallel", "FullyShardedDataParallel"), "module"
"""Classes that hold a model, and its name in them."""


class Objects:
    """The functions and classes of all modules, and what each call runs."""

    def __init__(self, walks: Sequence[Walk], calls: Sequence[Call]) -> None:
        scopes = [scope for walk in walks for scope in walk.scopes]
        self.functions = {scope.full_name: scope for scope in scopes if scope.name}
        self.modules = {walk.scopes[0].module.name: walk.scopes[0] for walk in walks}
        self.own = {
            f"{around.module.name}.{node.name}": (node, around)
            for walk in walks
            for node, around in walk.classes
        }
        self._attributes = {scope.owner: scope.attributes for scope in scopes if scope.owner}
        self._returns: dict[Scope, list[ast.expr]] = defaultdict(list)
        self._assigned_in: dict[ast.expr, Scope] = {}
        self._unpacked: dict[tuple[Scope, str], tuple[ast.Call, int]] = {}
        """The variables that get a part of what a function returns."""
        self._entered: dict[tuple[Scope, str], ast.expr] = {}
        """The variables that get what a context enters."""
        for statement in (one for walk in walks for one in walk.statements):
            self._note(statement)
        self._given = {
            self._full(call.name) for call in calls if call.node.args or call.node.keywords
        }
        """Functions and classes that get arguments, which may replace defaults of a class."""
        self._callers: Mapping[Scope, Sequence[Call]] = {}
        self._known: dict[tuple[ast.expr, Scope], Classes] = {}
        self.called: dict[ast.Call, Scope | None] = {}
        for _ in range(ROUNDS):
            self._known = {}
            self.called = {call.node: self._resolved(call) for call in calls}
            before, self._callers = self._callers, self._by_scope(calls)
            if {scope: len(one) for scope, one in before.items()} == {
                scope: len(one) for scope, one in self._callers.items()
            }:
                break

    def _note(self, statement: Statement) -> None:
        node = statement.node
        if isinstance(node, ast.Return) and node.value is not None:
            self._returns[statement.scope].append(node.value)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else ()
            self._assigned_in |= dict.fromkeys((node.value, *parts), statement.scope)
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Call):
                for at, one in enumerate(target.elts):
                    self._unpacked[statement.scope, variable(one)] = (node.value, at)
        elif isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.optional_vars, ast.Name):
                    name = item.optional_vars.id
                    self._entered[statement.scope, name] = item.context_expr

    def _by_scope(self, calls: Sequence[Call]) -> Mapping[Scope, Sequence[Call]]:
        found: dict[Scope, list[Call]] = defaultdict(list)
        for call in calls:
            called = self.called[call.node]
            if called is not None and called is not call.scope:
                found[called].append(call)
        return found

    def returned(self, scope: Scope) -> Sequence[ast.expr]:
        """What a function returns."""
        return self._returns.get(scope, ())

    def unpacked(self, name: str, scope: Scope) -> tuple[ast.Call | None, int]:
        """The call of which a variable gets a part, and which: ``loss, shown = objective(…)``."""
        return self._unpacked.get((scope, name), (None, 0))

    def callers(self, scope: Scope) -> Sequence[Call]:
        """The calls of a function, as far as the source shows them."""
        return self._callers.get(scope, ())

    def classes(self, node: ast.expr, scope: Scope) -> Classes:
        """The script's own classes that an expression may be an object of; empty: unknown."""
        return self._of(node, scope, DEEPEST)

    def method(self, owner: str, name: str) -> Scope | None:
        """A method of a class, or of the classes that it is derived from."""
        bases = (self.functions.get(f"{one}.{name}") for one in self._bases(owner))
        return next((one for one in bases if one is not None), None)

    def run(self, function: ast.expr, scope: Scope) -> Scope | None:
        """The function of the script that a value is, also of an object that can be called."""
        if isinstance(function, ast.Call):
            owners = sorted(self.classes(function, scope))
            found = (self.method(owner, "__call__") for owner in owners)
            return next((one for one in found if one is not None), None)
        return self._run(function, scope, scope.named(function), DEEPEST)

    # What a call runs.

    def _resolved(self, call: Call) -> Scope | None:
        return self._run(call.node.func, call.scope, call.name, DEEPEST)

    def _run(self, function: ast.expr, scope: Scope, named: str, steps: int) -> Scope | None:
        around: Scope | None = scope
        while around is not None and isinstance(function, ast.Name):
            if function.id in around.inner:
                return around.inner[function.id]
            around = around.outer
        name = self._full(named)
        if name in self.functions:
            return self.functions[name]
        if name in self.own:
            return self.method(name, "__init__")
        owners: Iterable[str] = ()
        method = "__call__"
        if isinstance(function, ast.Attribute):
            owners, method = self._of(function.value, scope, steps), function.attr
        elif isinstance(function, ast.Name) and not named:
            owners = self._of(function, scope, steps)
        found = (self.method(owner, method) for owner in sorted(owners))
        return next((one for one in found if one is not None), None)

    # What an expression is an object of.

    def _of(self, node: ast.expr, scope: Scope, steps: int) -> Classes:
        key = (node, scope)
        if key not in self._known and steps:
            self._known[key] = UNKNOWN  # where a variable is assigned from itself
            self._known[key] = frozenset(self._found(node, scope, steps - 1))
        return self._known.get(key, UNKNOWN)

    def _found(self, node: ast.expr, scope: Scope, steps: int) -> Iterator[str]:
        if isinstance(node, ast.IfExp | ast.BoolOp):
            parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
            for part in parts:
                yield from self._of(part, scope, steps)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node, scope, steps)
        elif isinstance(node, ast.Name):
            yield from self._of_name(node, scope, steps)
        elif isinstance(node, ast.Attribute):
            yield from self._of_global(scope.names.of(node), steps)
            if node.attr == INNER:
                yield from self._inside(node.value, scope, steps)
            for owner in self._of(node.value, scope, steps):
                yield from self._of_attribute(owner, node.attr, steps)

    def _inside(self, node: ast.expr, scope: Scope, steps: int) -> Iterator[str]:
        """Of the model that a wrapper such as DDP holds."""
        shown: Iterable[tuple[ast.expr | None, Scope]] = ()
        if isinstance(node, ast.Attribute):
            shown = self.values(node, scope)
        elif isinstance(node, ast.Name):
            shown = ((value, scope) for value in scope.variables.get(node.id, ()))
        for value, around in shown:
            made = value if isinstance(value, ast.Call) and value.args else None
            if made is not None and scope.named(made.func).endswith(WRAPPERS):
                yield from self._of(made.args[0], around, steps)

    def _of_call(self, node: ast.Call, scope: Scope, steps: int) -> Iterator[str]:
        function, name = node.func, self._full(scope.named(node.func))
        if name in self.own:
            yield name
        elif isinstance(function, ast.Name) and function.id in ("cls", "super"):
            bases = [*self._bases(_owner(scope))]
            yield from bases[1:2] if function.id == "super" else bases[:1]
        elif isinstance(function, ast.Attribute) and function.attr in SAME and not node.keywords:
            yield from self._of(function.value, scope, steps)
        elif (found := self._run(function, scope, name, steps)) is not None:
            for value in self.returned(found):
                yield from self._of(value, found, steps)

    def _of_name(self, node: ast.Name, scope: Scope, steps: int) -> Iterator[str]:
        if node.id == "self" and (owner := _owner(scope)):
            yield owner
            return
        around: Scope | None = scope
        while around is not None and node.id not in around.variables:
            around = around.outer
        if around is None:
            yield from self._of_global(scope.names.of(node), steps)
            return
        for value in around.variables[node.id]:
            if value is not None:
                yield from self._of(value, around, steps)
            else:
                yield from self._of_argument(node.id, around, steps)
                yield from self._of_part(node.id, around, steps)

    def _of_argument(self, name: str, scope: Scope, steps: int) -> Iterator[str]:
        """By the annotation of an argument, else by what the calls pass."""
        given = getattr(scope.node, "args", None)
        if not isinstance(given, ast.arguments):
            return
        every = (*given.posonlyargs, *given.args, *given.kwonlyargs)
        argument = next((one for one in every if one.arg == name), None)
        if argument is None:
            return
        if (annotated := self._annotated(argument.annotation, scope)) in self.own:
            yield annotated
            return
        for call in self._callers.get(scope, ()):
            value = arguments(call.node, scope).get(name)
            if value is not None:
                yield from self._of(value, call.scope, steps)

    def _of_part(self, name: str, scope: Scope, steps: int) -> Iterator[str]:
        """Of a context, or of several values that a function returns."""
        entered = self._entered.get((scope, name))
        for owner in self._of(entered, scope, steps) if entered is not None else ():
            enters = self.method(owner, "__enter__")
            for value in self.returned(enters) if enters is not None else ():
                yield from self._of(value, enters, steps) if enters is not None else ()
        call, at = self.unpacked(name, scope)
        made = None
        if call is not None:
            made = self._run(call.func, scope, scope.named(call.func), steps)
        for value in self.returned(made) if made is not None else ():
            if isinstance(value, ast.Tuple) and at < len(value.elts) and made is not None:
                yield from self._of(value.elts[at], made, steps)

    def _of_attribute(self, owner: str, name: str, steps: int) -> Iterator[str]:
        for base in self._bases(owner):
            node, around = self.own[base]
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and variable(one.target) == name:
                    yield from {self._annotated(one.annotation, around)} & self.own.keys()
        for value, within in self._values(owner, name):
            yield from self._of(value, within, steps)

    def values(self, node: ast.Attribute, scope: Scope) -> Sequence[tuple[ast.expr, Scope]]:
        """What an attribute of an object of the script is assigned from; empty: unknown."""
        owners = sorted(self.classes(node.value, scope))
        return [one for owner in owners for one in self._values(owner, node.attr)]

    def _values(self, owner: str, name: str) -> Iterator[tuple[ast.expr, Scope]]:
        """What methods assign, what a property returns, or the default in the class."""
        for base in self._bases(owner):
            for value in self._attributes.get(base, {}).get(f"self.{name}", ()):
                within = self._assigned_in.get(value) if value is not None else None
                if value is not None and within is not None:
                    yield value, within
            getter = self.functions.get(f"{base}.{name}")
            for value in self.returned(getter) if getter is not None else ():
                if getter is not None:
                    yield value, getter
            if base not in self._given:
                yield from self.default(base, name)

    def default(self, owner: str, name: str) -> Iterator[tuple[ast.expr, Scope]]:
        """What the body of a class of the script assigns to a field."""
        node, around = self.own.get(owner, (None, None))
        for one in node.body if node is not None else ():
            for field, value in assignments(one):
                if field == name and value is not None and around is not None:
                    yield value, around

    def _of_global(self, name: str, steps: int) -> Iterator[str]:
        """A variable at the top level of another module."""
        module, _, own = self._full(name).rpartition(".")
        top = self.modules.get(module)
        for value in top.variables.get(own, ()) if top is not None else ():
            if value is not None and top is not None:
                yield from self._of(value, top, steps)

    def _annotated(self, annotation: ast.expr | None, scope: Scope) -> str:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            own = f"{scope.module.name}.{annotation.value}"
            return own if own in self.own else ""
        return self._full(scope.names.of(annotation)) if annotation is not None else ""

    def _bases(self, owner: str) -> Iterator[str]:
        """A class and those of the script that it is derived from, the nearest first."""
        ahead, count = [owner], 0
        while ahead and count < MOST_BASES:
            name = ahead.pop(0)
            count += 1
            if name in self.own:
                yield name
                node, around = self.own[name]
                ahead += [self._full(around.names.of(base)) for base in node.bases]

    def _full(self, name: str) -> str:
        """The name under which a module of the script defines what another one passes on."""
        for _ in range(DEEPEST):
            module, _, own = name.rpartition(".")
            top = self.modules.get(module)
            passed = top.names.of(ast.Name(own)) if top is not None else ""
            if not passed or passed == name:
                break
            name = passed
        return name


def arguments(call: ast.Call, scope: Scope) -> Mapping[str, ast.expr]:
    """What a call passes to a function, by argument."""
    given = getattr(scope.node, "args", None)
    if not isinstance(given, ast.arguments):
        return {}
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    if scope.owner and names[:1] in (["self"], ["cls"]):
        del names[0]
    by_name = {word.arg: word.value for word in call.keywords if word.arg is not None}
    plain = next(
        (at for at, one in enumerate(call.args) if isinstance(one, ast.Starred)), len(call.args)
    )
    return {**dict(zip(names, call.args[:plain], strict=False)), **by_name}


def defaults(scope: Scope) -> Mapping[str, ast.expr]:
    """What arguments of a function are by default."""
    given = getattr(scope.node, "args", None)
    if not isinstance(given, ast.arguments):
        return {}
    plain = (*given.posonlyargs, *given.args)
    pairs = [
        *zip(plain[len(plain) - len(given.defaults) :], given.defaults, strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return {one.arg: value for one, value in pairs if value is not None}


def _owner(scope: Scope) -> str:
    """The class of a method, or of the method that a function is defined in."""
    around: Scope | None = scope
    while around is not None and not around.owner:
        around = around.outer
    return around.owner if around is not None else ""
