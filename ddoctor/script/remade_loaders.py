"""DataLoaders that a function makes, which some line calls again in each epoch."""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.script.arguments import LOADER
from ddoctor.script.in_training import EVALUATES
from ddoctor.script.names import source
from ddoctor.script.program import MOST_CALLERS, Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Call, Scope

MOST_OUTWARDS = 3
"""Functions that are followed from a DataLoader to the loop over epochs."""


def remade_loaders(program: Program) -> Iterator[tuple[Call, Call]]:
    """The DataLoaders, each with the call in the loop over epochs.

    Those that a test, a cache or a name for evaluation may keep from it are none.
    """
    for made in program.by_name.get(LOADER, ()):
        if not made.around:
            for call in _calls(made.scope, program, MOST_OUTWARDS):
                yield made, call


def _calls(scope: Scope, program: Program, steps: int) -> Iterator[Call]:
    calls = program.calls_of(scope)
    if not 0 < len(calls) <= MOST_CALLERS or not steps or _caches(scope):
        return
    for call in calls:
        if EVALUATES & lower(source(call.statement)[:200]):
            continue
        inside = [at for at, block in enumerate(call.around) if block.node in program.epochs]
        if inside and len(call.around) == inside[-1] + 1:
            yield call
        elif not call.around:
            yield from _calls(call.scope, program, steps - 1)


def _caches(scope: Scope) -> bool:
    """Whether a decorator keeps what the function returns."""
    decorators = getattr(scope.node, "decorator_list", ())
    return any("cache" in own_name(one).lower() for one in decorators)
