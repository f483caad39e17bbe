"""Evaluations of each rank's part of the data whose result is reported as that of the whole."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddoctor.script.arguments import LOADER, keywords
from ddoctor.script.calls import is_collective
from ddoctor.script.names import PRINT, source, variable
from ddoctor.script.program import MOST_CALLERS, Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.same import given_to
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.streams import functions_of

SHARES = "torch.utils.data.DistributedSampler"
REDUCES = frozenset(
    {"reduce", "reduced", "gather", "sync", "synchronize", "average", "distributed"}
)
"""Words of functions that may add the parts of all ranks up."""
REPORTS = frozenset({PRINT, "info", "log", "write", "add_scalar", "add_scalars", "set_postfix"})
HARMLESS = frozenset({"append", "round", "float", "max", "min", "format", "str", "len", "exp"})
"""Functions that a result may get to before it is reported."""
OTHERS = (ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.Set, ast.Constant)
OTHERS_MAKE = ("range", "list", "sorted", "torch.load")
"""Functions that make what a loop may run over, and no DataLoader."""
PASSES_ON = ("enumerate", "tqdm", "iter", "zip")
PARTS = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules"}
    | {"children", "named_children", "state_dict", "items", "values", "keys", "param_groups"}
)
"""What a loop takes from a model, an optimizer or a mapping, as an optimizer's step does."""


@dataclass(frozen=True)
class Partial:
    """An evaluation, and what reports its result."""

    loop: ast.For
    scope: Scope
    loader: Call
    report: Call


def partial_metrics(program: Program) -> Iterator[Partial]:
    """The evaluations where nothing on the way from the loop to the report asks another rank."""
    for scope in program.scopes:
        loops = [*evaluations(scope, program)]
        loaders = _loaders(loops[0].iter, scope, program) if len(loops) == 1 else ()
        report = next(_reports(scope, loops[0], program), None) if loaders else None
        if report is None or any(map(_may_reduce, _between(loops[0], scope, report, program))):
            continue
        if all(_shares(one, program) for one in loaders):
            yield Partial(loops[0], scope, loaders[0], report)


def evaluations(scope: Scope, program: Program) -> Iterator[ast.For]:
    """The loops of a function that compute no gradients."""
    found: dict[ast.AST, None] = {}
    for call in scope.calls:
        kinds = [block.kind for block in call.around]
        if "no-grad" in kinds and "loop" in kinds[kinds.index("no-grad") :]:
            still = call.around[kinds.index("no-grad") :]
            found |= {next(block.node for block in still if block.kind == "loop"): None}
    yield from (one for one in found if isinstance(one, ast.For) and one not in program.training)


def _between(loop: ast.For, scope: Scope, report: Call, program: Program) -> Iterator[Call]:
    """The calls from the loop to the report, or to the end of the function, and what they call."""
    last = report.node.lineno if report.scope is scope else loop.lineno + len(scope.module.lines)
    own = [call for call in scope.calls if loop.lineno <= call.node.lineno <= last]
    called = [one for call in own if (one := program.called(call)) is not None]
    yield from own
    yield from (call for one in functions_of(called, program) for call in one.calls)


def _may_reduce(call: Call) -> bool:
    return is_collective(call) or bool(REDUCES & lower(call.method))


def on_loaders(program: Program) -> bool:
    """Whether an evaluation may run over a DataLoader."""
    loops = ((one, scope) for scope in program.scopes for one in evaluations(scope, program))
    return any(may_be_loader(one, scope, program) for one, scope in loops)


def may_be_loader(loop: ast.For, scope: Scope, program: Program) -> bool:
    """Whether a loop may run over a DataLoader: what others are is in the source."""
    taken = _passed_on(loop.iter)
    part = taken.func if isinstance(taken, ast.Call) else taken
    if isinstance(part, ast.Subscript) or (isinstance(part, ast.Attribute) and part.attr in PARTS):
        return False
    made = _made(taken, scope, program)
    return not made or not all(
        isinstance(one, OTHERS)
        or (isinstance(one, ast.Call) and ast.unparse(one.func) in OTHERS_MAKE)
        for one in made
    )


def _passed_on(taken: ast.expr) -> ast.expr:
    """What a loop runs over, without the functions that only pass it on."""
    while isinstance(taken, ast.Call) and own_name(taken.func) in PASSES_ON and taken.args:
        taken = taken.args[0]
    return taken


def _made(taken: ast.expr, scope: Scope, program: Program) -> Sequence[ast.expr | None]:
    """The expressions that make what a loop runs over; None: one is not shown; empty: none is."""
    taken = _passed_on(taken)
    name = variable(taken)
    if isinstance(taken, ast.Name) and scope.variables.get(name) == [None]:
        given = [*given_to(name, scope, program)]
    else:
        given = [*program.values(taken, scope)] if name else []
    made: list[ast.expr | None] = []
    for value, where in given:
        for _ in range(2):
            shown = program.values(value, where) if value is not None and variable(value) else ()
            value, where = shown[0] if len(shown) == 1 else (value, where)
        made.append(value)
    return made


def _loaders(taken: ast.expr, scope: Scope, program: Program) -> Sequence[Call]:
    """The DataLoaders that a loop may run over; empty: not all of them are known."""
    made: list[Call] = []
    for value in _made(taken, scope, program):
        found = next((one for one in program.by_name.get(LOADER, ()) if one.node is value), None)
        if found is None:
            return ()
        made.append(found)
    return made if len(made) <= MOST_CALLERS else ()


def _shares(loader: Call, program: Program) -> bool:
    """Whether its sampler surely gives each rank a part."""
    given = dict(keywords(loader, program)).get("sampler")
    return given is not None and program.origins(given, loader.scope) == (SHARES,)


def _reports(scope: Scope, loop: ast.For, program: Program) -> Iterator[Call]:
    """What prints or logs a result of the loop: here, or where the only call of this returns."""
    counted = {
        variable(node.target)
        for node in ast.walk(loop)
        if isinstance(node, ast.AugAssign) and variable(node.target)
    }
    results = _grown(counted, scope)
    yield from _told(results, scope, after=loop.end_lineno or loop.lineno)
    call = program.caller(scope)
    returned = [*program.results(scope)]
    if call is None or not returned or not all(results & _names(one) for one in returned):
        return
    statement = call.statement
    if isinstance(statement, ast.Assign) and statement.value is call.node:
        targets = frozenset().union(*map(_names, statement.targets))
        yield from _told(_grown(targets, call.scope), call.scope, after=call.node.lineno)


def _grown(names: set[str] | frozenset[str], scope: Scope) -> frozenset[str]:
    """The variables, and those that are computed of them."""
    found = frozenset(names)
    for _ in range(3):
        found |= {
            name
            for name, values in scope.variables.items()
            if any(one is not None and found & _names(one) for one in values)
        }
    return found


def _told(names: frozenset[str], scope: Scope, *, after: int) -> Iterator[Call]:
    """The first report of these variables, unless an unknown function gets one of them, too."""
    users = [call for call in scope.calls if call.node.lineno > after and _gets(call, names)]
    known = REPORTS | HARMLESS
    if all(call.method in known or call.on in names for call in users):
        told = (call for call in users if call.method in REPORTS)
        # `print(f"rank {rank}: {accuracy}")` says what it is.
        yield from (call for call in told if "rank" not in source(call.node).lower())


def _gets(call: Call, names: frozenset[str]) -> bool:
    given = (*call.node.args, *(word.value for word in call.node.keywords))
    return any(names & _names(one) for one in given)


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
