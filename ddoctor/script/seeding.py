"""What seeds random numbers, alike everywhere or by the rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddoctor.script.names import variable
from ddoctor.script.objects import arguments
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.same import Varies, varies
from ddoctor.script.scopes import Call, Scope, Statement

SEEDS = ("numpy.random.seed", "random.seed", "torch.manual_seed")
"""Of these, a DataLoader seeds random and torch in each worker, and a function undoes that."""

SEED = "torch.manual_seed"
SEEDS_ALL = ("set_seed", "seed_everything")
"""Functions of libraries."""
DEEPEST = 2
"""Functions that are followed to a seed."""

OPTIONS = re.compile(r"(self\.)?(args|cfg|config|conf|opt|opts|options|hparams)\.seed")


def constant_seeds(program: Program) -> Iterator[tuple[str, ast.AST, Scope, bool]]:
    """The full name of each function that does so, with the first call that seeds.

    A careless ``worker_init_fn`` is one.

    The last value: whether its argument, the number of a worker, is part of the seed.
    """
    for scope in program.scopes:
        seeds = [call for call in scope.calls if call.name in SEEDS]
        arguments = getattr(scope.node, "args", None)
        if not seeds or len(seeds) != len(scope.calls) or not isinstance(arguments, ast.arguments):
            continue
        own = {one.arg for one in ast.walk(arguments) if isinstance(one, ast.arg)}
        if not own or any(one.around for one in seeds):
            continue
        used = {one.id for one in ast.walk(scope.node) if isinstance(one, ast.Name)}
        if not own & used:
            yield scope.full_name, seeds[0].node, scope, False
        elif all(_is_fixed(part, own, scope) for one in seeds for part in one.node.args) and not (
            any(map(_changes_a_seed, program.statements))
        ):
            yield scope.full_name, seeds[0].node, scope, True


def _is_fixed(seed: ast.expr, own: set[str], scope: Scope) -> bool:
    """Whether nothing in a seed but the arguments of the function differs between ranks."""
    if isinstance(seed, ast.BinOp):
        return _is_fixed(seed.left, own, scope) and _is_fixed(seed.right, own, scope)
    if isinstance(seed, ast.Name):
        shown = scope.shown(seed.id)
        inner = bool(shown) and all(_is_fixed(one, own, scope) for one in shown)
        return seed.id in own or inner
    return isinstance(seed, ast.Constant) or OPTIONS.fullmatch(variable(seed)) is not None


def _changes_a_seed(statement: Statement) -> bool:
    """Whether it assigns to an option ``seed``, such as ``args.seed += rank``."""
    node = statement.node
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(one, ast.Attribute) and one.attr == "seed" for one in targets)


def seed_varies(call: Call, program: Program, steps: int) -> Varies | None:
    """How the seed that a call sets varies between the ranks; None: it sets none."""
    called = program.called(call)
    if called is None and (call.name == SEED or call.method in SEEDS_ALL):
        return varies(next(iter(call.node.args), None), call.scope, program)
    if called is None or not steps or called is call.scope:
        return None
    # The last seed of a function counts.
    for inner in reversed(called.calls):
        kind = seed_varies(inner, program, steps - 1)
        given = inner.node.args[0] if inner.node.args else None
        if kind is not None and isinstance(given, ast.Name):
            passed = arguments(call.node, called).get(given.id)
            return varies(passed, call.scope, program) if passed is not None else kind
        if kind is not None:
            return kind
    return None


def with_seeds(scope: Scope, program: Program) -> Iterator[tuple[Call, Call | None]]:
    """Each call of a function that seeds nothing, and what seeds the ranks differently before it.

    None: nothing does, as far as the source shows it.
    """
    by_rank: Call | None = None
    for call in scope.calls:
        kind = seed_varies(call, program, DEEPEST)
        if kind is None:
            yield call, by_rank
        else:
            by_rank = _place(call, program) if kind == "by-rank" and not call.around else None


def _place(call: Call, program: Program, steps: int = DEEPEST) -> Call:
    """The call within this one whose seed has the rank, rather than an argument with it."""
    called = program.called(call) if steps else None
    for inner in reversed(called.calls) if called is not None else ():
        passed_on = isinstance(next(iter(inner.node.args), None), ast.Name)
        if not passed_on and seed_varies(inner, program, steps) == "by-rank":
            return _place(inner, program, steps - 1)
    return call


def is_seeded(program: Program) -> bool:
    """Whether any call has a name that may seed."""
    return any("seed" in lower(call.method) for call in program.calls)
