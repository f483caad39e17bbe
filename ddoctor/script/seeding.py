"""Functions that seed random numbers alike everywhere, such as a careless ``worker_init_fn``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.scopes import Scope, Statement

SEEDS = ("numpy.random.seed", "random.seed", "torch.manual_seed")
"""Of these, a DataLoader seeds random and torch in each worker, and a function undoes that."""

OPTIONS = re.compile(r"(self\.)?(args|cfg|config|conf|opt|opts|options|hparams)\.seed")


def constant_seeds(program: Program) -> Iterator[tuple[str, ast.AST, Scope, bool]]:
    """The full name of each such function, with the first call that seeds.

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
