"""Functions that seed random numbers with a constant, such as a careless ``worker_init_fn``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.program import Program
from ddoctor.script.scopes import Scope

SEEDS = ("numpy.random.seed", "random.seed", "torch.manual_seed")
"""Of these, a DataLoader seeds random and torch in each worker, and a function undoes that."""


def constant_seeds(program: Program) -> Iterator[tuple[str, ast.AST, Scope]]:
    """The full name of each such function, with the first call that seeds."""
    for scope in program.scopes:
        seeds = [call for call in scope.calls if call.name in SEEDS]
        arguments = getattr(scope.node, "args", None)
        if not seeds or len(seeds) != len(scope.calls) or not isinstance(arguments, ast.arguments):
            continue
        own = {one.arg for one in ast.walk(arguments) if isinstance(one, ast.arg)}
        used = {one.id for one in ast.walk(scope.node) if isinstance(one, ast.Name)}
        if own and not own & used and not any(one.around for one in seeds):
            yield scope.full_name, seeds[0].node, scope
