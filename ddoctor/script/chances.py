"""Steps that a rank leaves out by random numbers, which are others on each rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.script.own_branches import skips
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.same import varies
from ddoctor.script.scopes import Call, Scope, Statement
from ddoctor.script.seeding import SEEDS_ALL

SEEDED_BY = {
    "random.": "random.seed",
    "numpy.random.": "numpy.random.seed",
    "torch.": "torch.manual_seed",
}
"""By the beginning of a function's name, what seeds it."""
DRAWS = frozenset(
    {
        *("random.random", "random.randint", "random.randrange", "random.choice", "random.uniform"),
        *(f"numpy.random.{one}" for one in ("rand", "random", "randint", "uniform", "choice")),
        *("torch.rand", "torch.randint", "torch.bernoulli"),
    }
)


def own_chances(program: Program) -> Iterator[tuple[Statement, ast.expr]]:
    """Where a rank leaves a training loop, or a step before its backward pass, by chance."""
    for statement, test, _ in skips(program):
        drawn = _drawn(test, statement.scope)
        if drawn and all(_differs(one, program) for one in drawn):
            yield statement, test


def _drawn(test: ast.expr, scope: Scope) -> set[str]:
    """The functions that draw the numbers of a test, or of the variables in it."""
    names = [one.id for one in ast.walk(test) if isinstance(one, ast.Name)]
    shown = (value for name in names for value in scope.assigned(name) if value is not None)
    parts = (part for one in (test, *shown) for part in ast.walk(one))
    called = {scope.named(one.func) for one in parts if isinstance(one, ast.Call)}
    return called & DRAWS


def _differs(drawn: str, program: Program) -> bool:
    """Whether the ranks' generators are seeded by the rank, or by nothing."""
    seed = next(name for start, name in SEEDED_BY.items() if drawn.startswith(start))
    kinds = set()
    for call in program.calls:
        if call.name == seed or (call.method in SEEDS_ALL and program.called(call) is None):
            kinds.add(_kind(call, program))
        elif "seed" in lower(call.method) and call.name not in SEEDED_BY.values():
            # A function from elsewhere may seed anything.
            kinds.update(() if program.called(call) is not None else ("unknown",))
    return kinds <= {"by-rank"}


def _kind(seed: Call, program: Program) -> str:
    words = {word.arg: word.value for word in seed.node.keywords}
    if "device_specific" in words:
        return "unknown"
    return varies(seed.node.args[0] if seed.node.args else words.get("seed"), seed.scope, program)
