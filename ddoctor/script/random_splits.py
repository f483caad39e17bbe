"""Random splits of a dataset that each rank draws for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.same import varies
from ddoctor.script.scopes import Call
from ddoctor.script.seeding import DEEPEST, is_seeded, with_seeds

OF_TORCH = ("torch.utils.data.random_split", "torch.utils.data.dataset.random_split")
SEED_OF = {
    **dict.fromkeys(OF_TORCH, "generator"),
    "sklearn.model_selection.train_test_split": "random_state",
}
"""Functions that split at random, and the argument that makes the split the same everywhere."""
OF_DATASETS = "train_test_split"
"""A method of Hugging Face's datasets, whose argument is ``seed``."""


@dataclass(frozen=True)
class RandomSplit:
    """A split that differs between the ranks, and what seeds them differently."""

    call: Call
    argument: str
    seed: ast.expr | Call | None
    """None: nothing seeds the ranks, and each begins with a random seed."""


def random_splits(program: Program) -> Iterator[RandomSplit]:
    """Those that all ranks make."""
    seeded = is_seeded(program)
    for scope in program.scopes:
        for call, by_rank in with_seeds(scope, program):
            if not call.tests_rank:
                yield from _drawn(call, program, by_rank, seeded=seeded)


def _drawn(
    call: Call, program: Program, by_rank: Call | None, *, seeded: bool
) -> Iterator[RandomSplit]:
    for split in _splits(call, program, DEEPEST if by_rank is not None else 0):
        argument = _argument(split)
        given = _given(split, argument)
        if given is not None:
            # Of another generator, nothing is known.
            value = _of_generator(given) if argument == "generator" else given
            if value is not None and varies(value, split.scope, program) == "by-rank":
                yield RandomSplit(split, argument, value)
        elif by_rank is not None and split.name in OF_TORCH:
            yield RandomSplit(split, argument, by_rank)
        elif not seeded:
            yield RandomSplit(split, argument, None)


def _splits(call: Call, program: Program, steps: int) -> Sequence[Call]:
    """The call itself, or those in the function that it calls."""
    if _argument(call):
        return [call]
    called = program.called(call) if steps else None
    if called is None or called is call.scope:
        return []
    return [split for one in called.calls for split in _splits(one, program, steps - 1)]


def _argument(call: Call) -> str:
    in_order = any(
        word.arg == "shuffle" and isinstance(word.value, ast.Constant) and not word.value.value
        for word in call.node.keywords
    )
    if in_order:
        return ""
    if call.name in SEED_OF:
        return SEED_OF[call.name]
    is_method = isinstance(call.node.func, ast.Attribute) and call.method == OF_DATASETS
    return "seed" if is_method else ""


def _given(call: Call, argument: str) -> ast.expr | None:
    """The value of the argument; None: it is not given."""
    words = {word.arg: word.value for word in call.node.keywords}
    if None in words or any(isinstance(one, ast.Starred) for one in call.node.args):
        return ast.Constant(0)  # it may be among them
    third = call.node.args[2] if call.name in OF_TORCH and len(call.node.args) > 2 else None
    found = words.get(argument, third)
    is_none = isinstance(found, ast.Constant) and found.value is None
    return None if is_none else found


def _of_generator(given: ast.expr) -> ast.expr | None:
    """The seed in ``torch.Generator().manual_seed(seed)``."""
    seeds = isinstance(given, ast.Call) and own_name(given.func) == "manual_seed"
    return given.args[0] if isinstance(given, ast.Call) and seeds and given.args else None
