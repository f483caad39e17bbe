"""How the functions of a script call each other, what their values are, and what one rank runs."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ddoctor.evidence.source_lines import UNKNOWN
from ddoctor.script.calls import is_collective
from ddoctor.script.modules import MAIN, Module
from ddoctor.script.names import PRINT, variable
from ddoctor.script.objects import Objects, arguments, defaults
from ddoctor.script.ranks import asks_if_distributed
from ddoctor.script.scopes import (
    RANK_TESTS,
    Block,
    Call,
    Scope,
    Statement,
    Walk,
    assignments,
)
from ddoctor.script.training_loops import training_loops
from ddoctor.script.values import MOST_STEPS, origins

FEWEST = 3
"""Functions that are followed from a branch to a collective."""
MOST_AROUND = 8
"""Functions whose only call is followed outwards."""
MOST_CALLERS = 4
"""Calls of one function that are followed to what they pass."""
ENTRIES = frozenset({"", "main", "__call__", "forward"})
"""Functions that Python or torch call: the top level, main, and methods of objects."""
UNSHOWN = frozenset({UNKNOWN, ""})
CHANGES = ("update", "setdefault", "pop", "popitem", "clear")
"""Methods of a dictionary."""


@dataclass(frozen=True, eq=False)
class Assigned:
    """A value that a variable or an attribute gets."""

    name: str
    """As the source writes it."""
    value: ast.expr | None
    """None: no expression shows it."""
    scope: Scope
    around: tuple[Block, ...]


class Program:
    """All modules of a script."""

    def __init__(self, walks: Sequence[Walk]) -> None:
        self.scopes: Sequence[Scope] = [scope for walk in walks for scope in walk.scopes]
        self.calls: Sequence[Call] = [call for scope in self.scopes for call in scope.calls]
        self.statements: Sequence[Statement] = [one for walk in walks for one in walk.statements]
        self.bases = {
            f"{around.module.name}.{node.name}": [around.names.of(base) for base in node.bases]
            for walk in walks
            for node, around in walk.classes
        }
        """The full names of the bases of each class."""
        self.defaults = _defaults(node for walk in walks for node, _ in walk.classes)
        """The constants that the fields of the script's classes begin with, by their names."""
        self._changes: dict[Module, frozenset[str]] = {}
        self._passed: dict[Scope, Mapping[str, ast.expr]] = {}
        self.objects = Objects(walks, self.calls)
        self.functions = self.objects.functions
        loops = training_loops(self.scopes, self.objects.called)
        self.training: set[ast.AST] = loops.training
        """The loops that call backward and step an optimizer."""
        self.epochs: set[ast.AST] = loops.epochs
        """The loops around them."""

    def called(self, call: Call) -> Scope | None:
        """The user's function that is called; None: another one, or unknown."""
        return self.objects.called[call.node]

    def around(self, call: Call | Statement) -> tuple[Block, ...]:
        """What contains a call or a statement: also what contains the only call of its function.

        Tests of the rank count in its function alone: callers tell whether one tests it.
        """
        return (*self._outside(call.scope, MOST_AROUND), *call.around)

    def passed(self, scope: Scope) -> Mapping[str, ast.expr]:
        """What the only call of a function passes, with defaults; empty: there is no such call."""
        if scope not in self._passed:
            self._passed[scope] = self._arguments(scope)
        return self._passed[scope]

    def _arguments(self, scope: Scope) -> Mapping[str, ast.expr]:
        one = self._only_call(scope)
        if one is None:
            return {}
        given = arguments(one.node, scope)
        if all(word.arg is not None for word in one.node.keywords):
            constants = (
                (name, value)
                for name, value in defaults(scope).items()
                if isinstance(value, ast.Constant)
            )
            return {**dict(constants), **given}
        return given

    def origins(self, node: ast.expr, scope: Scope, steps: int = MOST_STEPS) -> tuple[str, ...]:
        """What makes a value, also by the only call of a function and by objects' attributes."""
        found = origins(node, scope)
        open_ends = UNSHOWN | {scope.names.of(node)}
        if steps and open_ends & {*found} and (shown := self._shown(node, scope)):
            inner = (self.origins(value, within, steps - 1) for value, within in shown)
            return tuple(dict.fromkeys(one for each in inner for one in each))
        return found

    def _shown(self, node: ast.expr, scope: Scope) -> Sequence[tuple[ast.expr, Scope]]:
        if isinstance(node, ast.Attribute) and not scope.shown(variable(node)):
            if node.attr in self._set_later and variable(node.value) != "self":
                return ()
            of_class = [*self.objects.default(scope.names.of(node.value), node.attr)]
            return of_class or self.objects.values(node, scope) or self._of_module(node, scope)
        around: Scope | None = scope
        while around is not None and isinstance(node, ast.Name):
            if node.id in around.variables:
                one, value = self._only_call(around), self.passed(around).get(node.id)
                alone = around.variables[node.id] == [None]
                return [(value, one.scope)] if alone and one and value is not None else ()
            around = around.outer
        return self._of_module(node, scope)

    def _of_module(self, node: ast.expr, scope: Scope) -> Sequence[tuple[ast.expr, Scope]]:
        """What a variable of another module is assigned from; empty: not all is shown."""
        module, _, name = scope.names.of(node).rpartition(".")
        holds = self.objects.modules.get(module)
        if (
            holds is None
            or name in self._set_later
            or (holds.module, name) in self._set_by_functions
        ):
            return ()
        return [(one, holds) for one in holds.shown(name)]

    def function(self, node: ast.Call) -> Scope | None:
        """The same by its node, but for a call of a class, which returns an object."""
        called = self.objects.called.get(node)
        return None if called is not None and called.name.endswith("__init__") else called

    def values(self, node: ast.expr, scope: Scope) -> Sequence[tuple[ast.expr, Scope]]:
        """What a variable is assigned from, each with its function; empty: not all is shown.

        Also an argument by the only call, a variable of another module, and a field of an object
        of the script's own class.
        """
        name, attribute = variable(node), getattr(node, "attr", "")
        given, caller = self.passed(scope).get(name), self.caller(scope)
        if given is not None and caller is not None:
            return [(given, caller.scope)]
        if attribute and not name.startswith("self.") and attribute in self._set_later:
            return ()
        holds: Scope | None = scope
        while holds is not None and name not in holds.variables:
            holds = holds.outer
        if name.startswith("self."):
            found = [(one, self._method(one, scope)) for one in scope.shown(name)]
        elif holds is not None:
            found = [(one, holds) for one in holds.shown(name)]
        else:
            found = [*self._of_module(node, scope)]
        if holds is not None and not holds.name and (holds.module, name) in self._set_by_functions:
            return ()
        return found or [*self._field(node, scope)]

    def _field(self, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        """The value of a field of a class, or that an object gets from its class or from a call."""
        if not isinstance(node, ast.Attribute):
            return
        yield from self.objects.default(scope.names.of(node.value), node.attr)
        for made, where in self._origin(node.value, scope):
            name = where.names.of(made.func) if isinstance(made, ast.Call) else ""
            if name not in self.objects.own or not isinstance(made, ast.Call) or made.args:
                continue
            given = {word.arg: word.value for word in made.keywords}
            if None not in given and node.attr in given:
                yield given[node.attr], where
            if not given.keys() & {None, node.attr}:
                yield from self.objects.default(name, node.attr)

    def _method(self, value: ast.expr, scope: Scope) -> Scope:
        """The method of the same class that contains an expression."""
        found = (one for one in self.methods.get(scope.owner, ()) if one.contains(value))
        return next(found, scope)

    def _origin(self, node: ast.expr, scope: Scope) -> Sequence[tuple[ast.expr, Scope]]:
        """What makes an object that other variables hold, too."""
        found: Sequence[tuple[ast.expr, Scope]] = [(node, scope)]
        for _ in range(MOST_STEPS):
            if len(found) != 1:
                break
            made, where = found[0]
            called = self.function(made) if isinstance(made, ast.Call) else None
            if called is not None and len(self.results(called)) == 1:
                found = [(self.results(called)[0], called)]
            elif variable(made):
                found = self.values(made, where)
            else:
                break
        return found

    @cached_property
    def _set_later(self) -> frozenset[str]:
        """The attributes that a statement sets on another object than ``self``."""
        return frozenset(
            target.attr
            for one in self.statements
            for target in assigned(one.node)
            if isinstance(target, ast.Attribute) and variable(target.value) != "self"
        )

    @cached_property
    def _set_by_functions(self) -> frozenset[tuple[Module, str]]:
        """The variables of modules that a function sets which something calls."""
        return frozenset(
            (one.scope.module, name)
            for one in self.statements
            if isinstance(one.node, ast.Global) and _own(one.scope) in self._callers
            for name in one.node.names
        )

    @cached_property
    def _scopes_of(self) -> Mapping[Module, Sequence[Scope]]:
        found: dict[Module, list[Scope]] = defaultdict(list)
        for scope in self.scopes:
            found[scope.module].append(scope)
        return found

    def scope_of(self, node: ast.expr, module: Module) -> Scope:
        """The innermost function around an expression; the top level of its module has none."""
        around = (one for one in self._scopes_of[module] if not one.name or one.contains(node))
        return max(around, key=lambda one: getattr(one.node, "lineno", 0))

    def calls_of(self, scope: Scope) -> Sequence[Call]:
        """The calls of a function that the source shows; of ``__init__``, those of its class."""
        return self.objects.callers(scope)

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[Call]]:
        """The calls by the full name of what they call."""
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            found[call.name].append(call)
        return found

    @cached_property
    def methods(self) -> Mapping[str, Sequence[Scope]]:
        """The methods by the full name of their class."""
        found: dict[str, list[Scope]] = defaultdict(list)
        for scope in self.scopes:
            if scope.owner:
                found[scope.owner].append(scope)
        return found

    @cached_property
    def variables(self) -> Mapping[tuple[Scope, str], Sequence[Assigned]]:
        """What each variable of a function is assigned from, in the order of the lines."""
        found: dict[tuple[Scope, str], list[Assigned]] = defaultdict(list)
        for one in self.statements:
            for name, value in assignments(one.node):
                found[one.scope, name].append(Assigned(name, value, one.scope, one.around))
        return found

    @cached_property
    def returns(self) -> Mapping[Scope, Sequence[Statement]]:
        """The statements by which a function returns a value."""
        found: dict[Scope, list[Statement]] = defaultdict(list)
        for one in self.statements:
            if isinstance(one.node, ast.Return):
                found[one.scope].append(one)
        return found

    @cached_property
    def attributes(self) -> Mapping[str, Sequence[Assigned]]:
        """What the attributes of any object are assigned from, by their last name."""
        found: dict[str, list[Assigned]] = defaultdict(list)
        for (_, name), values in self.variables.items():
            if "." in name:
                found[name.rpartition(".")[2]] += values
        return found

    @cached_property
    def set_keys(self) -> frozenset[str]:
        """The keys that a statement sets in a table, as ``cfg["bins"] = 64`` does."""
        return frozenset(
            str(target.slice.value)
            for one in self.statements
            for target in assigned(one.node)
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
        )

    def changed(self, module: Module) -> frozenset[str]:
        """The dictionaries that a module changes after it has made them."""
        if module not in self._changes:
            self._changes[module] = frozenset(map(_changed, module.nodes))
        return self._changes[module]

    def caller(self, scope: Scope) -> Call | None:
        """The only call of a function; None: there is none, or several."""
        return self._only_call(scope)

    def results(self, scope: Scope) -> Sequence[ast.expr]:
        """What a function returns."""
        return self.objects.returned(scope)

    def _only_call(self, scope: Scope) -> Call | None:
        known = self.objects.callers(scope)
        # A method has names that other objects have as well, such as `step`.
        alone = bool(scope.owner) or len(self._callers.get(_own(scope), [])) == 1
        return known[0] if len(known) == 1 and alone else None

    def _outside(self, scope: Scope, deepest: int) -> tuple[Block, ...]:
        one = self._only_call(scope)
        if one is None or not deepest:
            return ()
        kept = (block for block in one.around if block.kind not in RANK_TESTS)
        return (*self._outside(one.scope, deepest - 1), *kept)

    @cached_property
    def _callers(self) -> Mapping[str, Sequence[Call]]:
        """Calls by the name of what they call, or pass on."""
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            for name in _callees(call):
                found[name].append(call)
        return found

    @cached_property
    def of_some_ranks(self) -> frozenset[Scope]:
        """Functions whose decorator or any caller tests the rank, or that nothing calls."""
        named: dict[str, list[Scope]] = defaultdict(list)
        for scope in self.scopes:
            named[_own(scope)].append(scope)
        called = {name for call in self.calls for name in _callees(call)}
        ahead = [scope for scope in self.scopes if scope.guarded]
        ahead += [one for name in named.keys() - called - ENTRIES for one in named[name]]
        testing = {
            _own(call.scope.outer)
            for call in self.calls
            if call.tests_rank and call.scope.outer is not None
        }
        ahead += [scope for scope in self.scopes if testing & {*_decorators(scope)}]
        for call in self.calls:
            if call.tests_rank:
                ahead += [one for name in _callees(call) for one in named.get(name, ())]
        found: set[Scope] = set()
        while ahead:
            scope = ahead.pop()
            if scope not in found:
                found.add(scope)
                names = (name for call in scope.calls for name in _callees(call))
                ahead += [one for name in names for one in named.get(name, ())]
        return frozenset(found)

    def guard(self, scope: Scope) -> tuple[Block, Scope] | None:
        """What lets one rank alone run a function: the test in a decorator of the script."""
        found = (self._decorators_for_one_rank.get(name) for name in _decorators(scope))
        return next((one for one in found if one is not None), None)

    @cached_property
    def _decorators_for_one_rank(self) -> Mapping[str, tuple[Block, Scope]]:
        """Functions whose inner one calls what it gets on one rank alone, by their names."""
        found: dict[str, tuple[Block, Scope]] = {}
        for call in self.calls:
            outer, name = call.scope.outer, variable(call.node.func)
            if outer is None or not outer.name or outer.variables.get(name) != [None]:
                continue
            alone = [one for one in call.around if one.kind == "one-rank"]
            others = [
                one
                for one in call.scope.calls
                if one is not call and variable(one.node.func) == name
            ]
            if alone and not others:
                found[_own(outer)] = alone[0], call.scope
        return found

    @cached_property
    def replaces_print(self) -> bool:
        """Whether the script has its own ``print``, which mostly is silent on other ranks."""
        return any(_own(scope) == PRINT or PRINT in scope.variables for scope in self.scopes)

    def always(self, call: Call) -> bool:
        """Whether every run of the script makes a call."""
        return call.scope in self._always and not any(map(_may_skip, call.around))

    @cached_property
    def _always(self) -> frozenset[Scope]:
        """The top level of the script, and the functions that it always calls."""
        ahead = [scope for scope in self.scopes[:1] if scope.module.name == MAIN]
        found: set[Scope] = set()
        while ahead:
            scope = ahead.pop()
            found.add(scope)
            for call in scope.calls:
                called = self.called(call)
                if called is not None and called not in found:
                    ahead += [called] * (not any(map(_may_skip, call.around)))
        return frozenset(found)

    def sure(
        self, call: Call, wanted: Callable[[Call], bool], deepest: int = FEWEST
    ) -> Call | None:
        """The call itself, or the first one that its function surely makes, if it is wanted."""
        if any(map(_may_skip, call.around)):
            return None
        if wanted(call):
            return call
        scope = self.called(call)
        if scope is None or not deepest or scope is call.scope:
            return None
        inner = (self.sure(one, wanted, deepest - 1) for one in scope.calls)
        return next((one for one in inner if one is not None), None)

    def reached(self, call: Call, deepest: int = FEWEST) -> Call | None:
        """The first collective that the called function always calls."""
        scope = self.called(call)
        if scope is None or not deepest or scope is call.scope:
            return None
        for one in scope.calls:
            if all(map(_is_passed, one.around)):
                if is_collective(one):
                    return one
                if found := self.reached(one, deepest - 1):
                    return found
        return None


def assigned(node: ast.stmt) -> Sequence[ast.expr]:
    """What a statement assigns to."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _is_passed(block: Block) -> bool:
    """Whether a distributed run enters it."""
    if block.kind == "condition" and block.test is not None:
        return asks_if_distributed(block.test)
    return block.kind in ("loop", "no-grad")


def _defaults(classes: Iterable[ast.ClassDef]) -> Mapping[str, str]:
    """Those of fields such as ``bins: int = 0``, whose name only one class has."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in classes:
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                value = one.value if isinstance(one.value, ast.Constant) else None
                found[one.target.id].append(str(value.value) if value is not None else "")
    return {name: values[0] for name, values in found.items() if len(values) == 1 and values[0]}


def _may_skip(block: Block) -> bool:
    return block.kind not in ("loop", "no-grad", "no-sync", "main-first")


def _changed(node: ast.AST) -> str:
    """The dictionary that a statement or a call changes; empty: none."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return variable(node.value)
    if isinstance(node, ast.AugAssign):
        return variable(node.target)
    method = node.func if isinstance(node, ast.Call) else None
    changes = isinstance(method, ast.Attribute) and method.attr in CHANGES
    return variable(method.value) if isinstance(method, ast.Attribute) and changes else ""


def _decorators(scope: Scope) -> Iterator[str]:
    """The names of a function's decorators."""
    for node in getattr(scope.node, "decorator_list", ()):
        function = node.func if isinstance(node, ast.Call) else node
        yield variable(function).rpartition(".")[2]


def _own(scope: Scope) -> str:
    """The name by which a function is called: without its class, or the class of ``__init__``."""
    owner, _, name = scope.name.rpartition(".")
    return owner if name == "__init__" else name


def _callees(call: Call) -> Iterator[str]:
    """The last part of the name of what it calls, and of functions that it gets."""
    yield call.method
    for given in (*call.node.args, *(one.value for one in call.node.keywords)):
        if name := variable(given):
            yield name.rpartition(".")[2]
