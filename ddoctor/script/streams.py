"""What the methods of a dataset do: also the functions of the script that they call."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

from ddoctor.script.calls import is_collective
from ddoctor.script.names import PRINT, source, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import kind_of, lower, own_name
from ddoctor.script.same import Varies, varies
from ddoctor.script.scopes import RANK_TESTS, Call, Scope, assignments

DEEPEST = 3
"""Functions that are followed from a method."""
MAKERS = (
    *("random.Random", "numpy.random.default_rng", "numpy.random.RandomState"),
    *("random.seed", "numpy.random.seed", "torch.manual_seed"),
)
OF_ALL = ("random.", "numpy.random.", "torch.rand", "torch.normal", "torch.multinomial")
"""Beginnings of functions that draw from a generator of the whole process."""
LOGS = frozenset({PRINT, "info", "debug", "warning", "error", "log", "write", "set_postfix"})
OF_FILES = frozenset(
    {
        *("file", "files", "path", "paths", "shard", "shards", "url", "urls", "tar", "tars"),
        *("archives", "parquet", "parquets", "parts", "logs", "hours", "days", "records"),
    }
)
EVENS = frozenset(
    {
        *("min", "minimum", "max", "limit", "steps", "pad", "padded", "padding", "even", "equal"),
        *("cycle", "repeat", "truncate", "islice", "length", "quota", "budget"),
    }
)
"""Words of code that may give all ranks as many samples."""
SPLITS_STREAMS = frozenset({"shard", "shards", "sharded"})
OF_ONE = frozenset({"num", "id", "index", "idx", "of", "rank", "worker", "count", "n", "by", "for"})


def methods_of(owner: str, program: Program) -> Sequence[Scope]:
    """The methods of a class and of its bases, and the functions of the script in them."""
    found = [*program.methods.get(owner, ())]
    for base in program.bases.get(owner, ()):
        found += program.methods.get(base, ())
    return functions_of(found, program)


def functions_of(scopes: Sequence[Scope], program: Program) -> Sequence[Scope]:
    """These functions, and those of the script that they call."""
    found = dict.fromkeys(scopes)
    ahead = [*found]
    for _ in range(DEEPEST):
        called = (program.called(call) for scope in ahead for call in scope.calls)
        ahead = [one for one in dict.fromkeys(called) if one is not None and one not in found]
        found |= dict.fromkeys(ahead)
    return [*found]


def words_of(scopes: Sequence[Scope]) -> Iterator[str]:
    """The words of names by which they may select a part; a rank that is only kept selects none."""
    kept = _kept_ranks(scopes)
    for scope in scopes:
        for name in _telling(scope.node, scope):
            found = lower(name) | kept.get(name, frozenset())
            yield from found - SPLITS_STREAMS
            # `self.shards` are files; `shard(…)` and `num_shards` select.
            if found & SPLITS_STREAMS and found & OF_ONE:
                yield "shard"
        for call in scope.calls:
            if SPLITS_STREAMS & lower(call.method):
                yield "shard"


def _kept_ranks(scopes: Sequence[Scope]) -> Mapping[str, frozenset[str]]:
    """The words of the values that attributes are copies of, such as ``rank``."""
    return {
        name.removeprefix("self."): lower(own_name(value))
        for scope in scopes
        for node in ast.walk(scope.node)
        for name, value in assignments(node)
        if value is not None and _is_copy(value) and name.startswith("self.")
    }


def _telling(node: ast.AST, scope: Scope) -> Iterator[str]:
    if isinstance(node, ast.Name | ast.Attribute):
        yield own_name(node)
    if isinstance(node, ast.Name) and node.id not in scope.variables:
        # What the module asks once, such as `first = dist.get_rank()`.
        yield from (own_name(part) for one in scope.shown(node.id) for part in ast.walk(one))
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isupper():
        yield node.value  # a variable of the environment
    if isinstance(node, ast.Assign) and all(map(_is_copy, _parts(node.value))):
        return
    if isinstance(node, ast.Call) and own_name(node.func) in LOGS:
        return
    if isinstance(node, ast.If) and kind_of(node.test, scope.shown) in RANK_TESTS:
        logs = [isinstance(one, ast.Expr) and _logs(one.value) for one in node.body]
        if all(logs) and not node.orelse:
            return
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, ast.arguments):
            yield from _telling(part, scope)


def _parts(value: ast.expr) -> Sequence[ast.expr]:
    return value.elts if isinstance(value, ast.Tuple) else [value]


def _is_copy(value: ast.expr) -> bool:
    """Whether it is an argument, or the rank, as such."""
    asks = isinstance(value, ast.Call) and own_name(value.func) in ("get_rank", "get_world_size")
    return isinstance(value, ast.Name) or asks


def _logs(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and own_name(value.func) in LOGS


def fixed_draws(
    scopes: Sequence[Scope], program: Program, *, seeds: Collection[Varies] = frozenset({"same"})
) -> Call | None:
    """What makes their generator from a seed that all ranks and workers have in common.

    ``seeds``: which seeds count; with ``by-rank``, those that the workers of a rank have in common.
    None: there is none, or they also draw other random numbers.
    """
    made: Call | None = None
    for call in (call for scope in scopes for call in scope.calls):
        maker = call.name in MAKERS or call.method == "manual_seed"
        if maker:
            given = [*call.node.args, *(word.value for word in call.node.keywords)]
            if not given or any(varies(one, call.scope, program) not in seeds for one in given):
                return None
            made = made or call
        elif call.name.startswith(OF_ALL) and not any(
            word.arg == "generator" for word in call.node.keywords
        ):
            return None
    return made


def deals(owner: str, scopes: Sequence[Scope], program: Program) -> tuple[ast.AST, Scope] | None:
    """Where a stream, or what makes it, takes every Nth file of a list by the rank.

    None: it does not, or something in it may give the ranks as many samples.
    """
    for scope in scopes:
        # `islice(files, rank, None, world)` deals, and ends nothing.
        deal = {
            part
            for node in ast.walk(scope.node)
            if isinstance(node, ast.Call) and _is_dealt(node, scope, program)
            for part in ast.walk(node)
        }
        evens = any(
            EVENS & lower(own_name(node))
            for node in ast.walk(scope.node)
            if isinstance(node, ast.Name | ast.Attribute) and node not in deal
        )
        if evens or scope.name.endswith("__len__") or any(map(is_collective, scope.calls)):
            return None
    parts = [(node, scope) for scope in scopes for node in ast.walk(scope.node)]
    if not any(map(_reads_on, (node for node, _ in parts))):
        return None
    for call in program.by_name.get(owner, ()):
        for given in (*call.node.args, *(word.value for word in call.node.keywords)):
            name = variable(given)
            shown = call.scope.shown(name) if name else ()
            parts += ((one, call.scope) for one in (given, *shown))
    dealt = ((node, scope) for node, scope in parts if _is_dealt(node, scope, program))
    return next(dealt, None)


def _reads_on(node: ast.AST) -> bool:
    """Whether a loop over files yields all that each of them holds."""
    if not isinstance(node, ast.For):
        return False
    names = {one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)}
    inner = [one for part in node.body for one in ast.walk(part)]
    opened = [one.iter for one in inner if isinstance(one, ast.For)]
    opened += [one.value for one in inner if isinstance(one, ast.YieldFrom)]
    if opened:
        opened += [one.context_expr for one in inner if isinstance(one, ast.withitem)]
        opened += [one.value for one in inner if isinstance(one, ast.Assign)]
    used = {one.id for value in opened for one in ast.walk(value) if isinstance(one, ast.Name)}
    return bool(names & used)


def _is_dealt(node: ast.AST, scope: Scope, program: Program) -> bool:
    """Whether it is such as ``files[rank::world]``, or skips files by ``number % world``."""
    if isinstance(node, ast.For):
        tests = [one.test for one in node.body if isinstance(one, ast.If)]
        return (
            _reads_on(node)
            and _are_files(node.iter, scope)
            and any(
                isinstance(one, ast.Compare)
                and isinstance(one.left, ast.BinOp)
                and isinstance(one.left.op, ast.Mod)
                and _by_rank(one.comparators[0], scope, program)
                for one in tests
            )
        )
    if isinstance(node, ast.Call) and own_name(node.func) == "islice" and len(node.args) == 4:
        ends = not isinstance(node.args[2], ast.Constant) or node.args[2].value is not None
        by_rank = _by_rank(node.args[1], scope, program)
        return by_rank and not ends and _are_files(node.args[0], scope)
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return False
    first = node.slice.lower
    steps = first is not None and node.slice.step is not None
    return steps and _are_files(node.value, scope) and _by_rank(first, scope, program)


def _are_files(value: ast.expr, scope: Scope) -> bool:
    name = variable(value)
    shown = (source(one) for one in scope.shown(name)) if name else ()
    whole = " ".join((source(value), *shown))
    return bool(OF_FILES & lower(whole)) and "//" not in whole


def _by_rank(first: ast.expr | None, scope: Scope, program: Program) -> bool:
    return any(
        varies(part, scope, program) == "by-rank"
        for part in (ast.walk(first) if first is not None else ())
        if isinstance(part, ast.Name | ast.Attribute | ast.Call)
    )
