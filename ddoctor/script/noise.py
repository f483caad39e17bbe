"""Random numbers of the training step that all ranks draw alike, since one seed is for all."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.names import source
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Call
from ddoctor.script.splits import RANKS

SEEDS = ("manual_seed", "manual_seed_all", "set_seed", "seed_everything")
DRAWS = frozenset(
    f"torch.{name}"
    for name in ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "normal")
)


def same_noise(program: Program) -> Iterator[tuple[Call, Call]]:
    """What draws in each step, with the call that gives all ranks the same seed.

    A seed in a branch may be for tests alone: it counts as none.
    """
    seeds = [call for call in program.calls if call.method in SEEDS]
    if any(_differs(call, program) for call in seeds) or not seeds:
        return
    sure = [call for call in seeds if not call.around and not call.scope.inner]
    for call in program.calls:
        if call.name in DRAWS and any(block.node in program.training for block in call.around):
            generator = any(word.arg == "generator" for word in call.node.keywords)
            if not generator and sure:
                yield call, sure[0]


def _differs(seed: Call, program: Program) -> bool:
    """Whether a rank may get its own seed: by a word, or by an argument that callers give."""
    given = [*seed.node.args, *(word.value for word in seed.node.keywords)]
    if any(word.arg == "device_specific" for word in seed.node.keywords):
        return True
    parts = [part for one in given for part in ast.walk(one)]
    if any(RANKS & lower(source(part)) for part in parts if isinstance(part, ast.expr)):
        return True
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    asks = names & {name for name, values in seed.scope.variables.items() if values == [None]}
    if not asks:
        return any(
            RANKS & lower(source(value)) for name in names for value in seed.scope.shown(name)
        )
    callers = [call for call in program.calls if program.called(call) is seed.scope]
    return not callers or any(
        RANKS & lower(source(one))
        for call in callers
        for one in (*call.node.args, *(word.value for word in call.node.keywords))
    )
