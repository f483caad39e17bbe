"""Files whose name is the same on all ranks, as every part of the path shows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.evidence.source_lines import SAVES
from ddoctor.script.calls import is_collective
from ddoctor.script.names import CONFIGS, source, variable
from ddoctor.script.objects import arguments
from ddoctor.script.program import MOST_CALLERS, Program
from ddoctor.script.ranks import HINTS, lower, own_name
from ddoctor.script.same import COUNTS, given_to, varies
from ddoctor.script.scopes import Call, Scope

JOINS = ("join", "Path", "PurePath", "PosixPath", "str", "fspath", "abspath", "realpath")
"""Functions whose result has the parts that they get, and nothing else."""
PARTS = ("with_suffix", "with_name", "joinpath", "resolve", "absolute", "as_posix", "format")
"""Methods of a path or a text that do the same."""
FIELDS = ("parent", "name", "stem", "suffix")
MOVES = ("os.replace", "os.rename", "shutil.move")
METHODS = ("replace", "rename")
"""Of ``pathlib.Path``, with one argument; those of a text take two."""
OWN = frozenset(
    {*HINTS, "device", "host", "hostname", "pid", "uuid", "time", "worker", "id", "tmp"}
)
"""Words of an option that may differ between ranks or hosts."""
READS = ("torch.load", "safetensors.torch.load_file", "numpy.load")
WAITS = frozenset({"wait", "barrier", "sync", "synchronize", "broadcast"})
MOST_STEPS = 8


def shared_files(program: Program) -> Iterator[tuple[Call, Call | None]]:
    """The calls that save under such a name, each with what then moves the file."""
    for call in (call for name in SAVES for call in program.by_name.get(name, ())):
        path = _path(call)
        if path is not None and is_shared(path, call.scope, program):
            yield call, next(_moves(path, call), None)


def read_too_early(program: Program) -> Iterator[tuple[Call, Call]]:
    """What one rank saves and all ranks read, in the same function, with no collective between.

    Either may be in a separate function, which gets the path.
    """
    for save, path in _saved_by_one(program):
        for call in save.scope.calls:
            if call.node.lineno <= save.node.lineno:
                continue
            read = _read(call, program)
            if program.reached(call) is not None or _meets(call, program.called(call)):
                break
            if read is not None and source(read) == source(path) and not call.tests_rank:
                yield save, call
                break


def _saved_by_one(program: Program) -> Iterator[tuple[Call, ast.expr]]:
    """What saves a file on one rank: the call itself, or one of the function that holds it."""
    for save in (call for name in SAVES for call in program.by_name.get(name, ())):
        path = _path(save)
        if path is None:
            continue
        if _of_one_rank(save):
            yield save, path
        for call in program.calls_of(save.scope):
            given = arguments(call.node, save.scope).get(variable(path))
            once = _of_one_rank(save) or _of_one_rank(call)
            if given is not None and once and not _meets(call, save.scope):
                yield call, given


def _read(call: Call, program: Program) -> ast.expr | None:
    """What a call reads, or the function that it calls; None: no file."""
    if call.name in READS:
        return call.node.args[0] if call.node.args else None
    scope = program.called(call)
    if scope is None:
        return None
    passed = arguments(call.node, scope)
    paths = (one.node.args[0] for one in scope.calls if one.name in READS and one.node.args)
    return next((passed[name] for path in paths if (name := variable(path)) in passed), None)


def _of_one_rank(call: Call) -> bool:
    return any(block.kind == "one-rank" for block in call.around)


def _meets(call: Call, called: Scope | None) -> bool:
    """Whether it may wait for other ranks, in the function that it calls, or in a backward pass."""
    inside = called.calls if called is not None else ()
    return any(is_collective(one) or _waits(one) for one in (call, *inside))


def _waits(call: Call) -> bool:
    """Whether it may wait for other ranks, by its name."""
    return call.method == "backward" or bool(WAITS & lower(call.method))


def _path(call: Call) -> ast.expr | None:
    """What a call writes to, also by ``open``; None: it is not known."""
    keyword, position = SAVES[call.name]
    named = next((word.value for word in call.node.keywords if word.arg == keyword), None)
    given = call.node.args[position] if len(call.node.args) > position else named
    file = given.id if isinstance(given, ast.Name) else ""
    for node in ast.walk(call.scope.node) if file else ():
        if isinstance(node, ast.withitem) and variable(node.optional_vars or node) == file:
            opened = node.context_expr
            opens = isinstance(opened, ast.Call) and own_name(opened) == "open"
            return opened.args[0] if isinstance(opened, ast.Call) and opens else None
    return given


def _moves(path: ast.expr, save: Call) -> Iterator[Call]:
    """What moves the same file later in the same function."""
    written = source(path)
    for call in save.scope.calls:
        function, args = call.node.func, call.node.args
        moved: ast.expr | None = None
        if call.name in MOVES and args:
            moved = args[0]
        elif isinstance(function, ast.Attribute) and function.attr in METHODS and len(args) == 1:
            moved = function.value
        if moved is not None and source(moved) == written and call.node.lineno > save.node.lineno:
            yield call


def is_shared(node: ast.expr, scope: Scope, program: Program, steps: int = MOST_STEPS) -> bool:
    """Whether a path is surely the same on all ranks."""
    parts = _parts(node)
    if parts is not None:
        return all(is_shared(one, scope, program, steps) for one in parts)
    if isinstance(node, ast.Constant) or not steps:
        return isinstance(node, ast.Constant)
    name = variable(node)
    if name and COUNTS & lower(name):
        return True
    found = _values(node, name, scope, program) if name else ()
    if found:
        return all(
            value is not None and is_shared(value, where, program, steps - 1)
            for value, where in found
        )
    if isinstance(node, ast.Attribute) and CONFIGS & lower(variable(node.value)):
        return not OWN & lower(node.attr)
    return varies(node, scope, program) == "same"


def _parts(node: ast.expr) -> Sequence[ast.expr] | None:
    """The parts that make up a path; None: it is one."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.JoinedStr):
        return [one.value if isinstance(one, ast.FormattedValue) else one for one in node.values]
    if isinstance(node, ast.Attribute) and node.attr in FIELDS:
        return [node.value]
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr in PARTS:
        return [function.value, *node.args]
    return node.args if own_name(function) in JOINS else None


def _values(
    node: ast.expr, name: str, scope: Scope, program: Program
) -> Sequence[tuple[ast.expr | None, Scope]]:
    """What a variable or an attribute is assigned from; None in it: a value that nothing shows."""
    if isinstance(node, ast.Attribute):
        known = list(program.attributes.get(node.attr, ()))
        own = [one for one in known if one.scope.owner == scope.owner]
        return [(one.value, one.scope) for one in own or known]
    at: Scope | None = scope
    while at is not None and name not in at.variables:
        at = at.outer
    if at is None:
        return ()
    found = [(one.value, one.scope) for one in program.variables.get((at, name), ())]
    if None in at.variables[name] and not found:
        calls = program.calls_of(at)
        return [*given_to(name, at, program)] if len(calls) <= MOST_CALLERS else [(None, at)]
    return [*found, *((None, at) for one in at.variables[name] if one is None)]
