"""Random numbers of the training step that all ranks draw alike, since one seed is for all."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.same import varies
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.values import origins

OF_ALL = ("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all")
OF_LIBRARIES = ("set_seed", "seed_everything")
DRAWS = frozenset(
    f"torch.{name}"
    for name in (
        *("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "normal"),
        *("bernoulli", "multinomial", "randperm"),
    )
)
IN_PLACE = (".normal_", ".uniform_", ".random_", ".bernoulli_")
AUGMENTS = ("torchvision.transforms.", "kornia.augmentation.")
"""Beginnings of what changes a batch at random, by torch's own generator."""
MODULE = "torch.nn.Module"
DEEPEST = 3
"""Functions that are followed from a training loop."""


def same_noise(program: Program) -> Iterator[tuple[Call, Call]]:
    """What draws in each step, with the call that gives all ranks the same seed.

    A seed in a branch may be for tests alone: it counts as none.
    """
    seeds = [call for call in program.calls if _seeds(call, program)]
    sure = [call for call in seeds if _is_sure(call, program)]
    alike = all(_is_alike(call, program) for call in seeds)
    for call in _in_steps(program):
        generator = next((one.value for one in call.node.keywords if one.arg == "generator"), None)
        if not _draws(call):
            continue
        if generator is None and sure and alike:
            yield call, sure[0]
        elif generator is not None and (seed := _seed_of(generator, call.scope, program)):
            yield call, seed


def _seeds(call: Call, program: Program) -> bool:
    """Whether it seeds the generators of the process; a function of the script is looked into."""
    return call.name in OF_ALL or (call.method in OF_LIBRARIES and program.called(call) is None)


def _is_alike(seed: Call, program: Program) -> bool:
    """Whether it gives all ranks the same seed."""
    words = {word.arg: word.value for word in seed.node.keywords}
    given = seed.node.args[0] if seed.node.args else words.get("seed")
    return "device_specific" not in words and varies(given, seed.scope, program) == "same"


def _is_sure(seed: Call, program: Program) -> bool:
    return not any(block.kind != "loop" for block in program.around(seed))


def _draws(call: Call) -> bool:
    if call.name in DRAWS or call.name in IN_PLACE:
        return True
    made = origins(call.node.func, call.scope) if not call.name and variable(call.node.func) else ()
    return bool(made) and all(one.startswith(AUGMENTS) for one in made)


def _in_steps(program: Program) -> Iterator[Call]:
    """The calls that the steps of the training make, also in the forward pass of a model."""
    ahead: list[Scope] = []
    for call in program.calls:
        inside = [at for at, block in enumerate(call.around) if block.node in program.training]
        if inside and not _at_times(call, inside[-1]):
            yield call
            if (called := program.called(call)) is not None:
                ahead.append(called)
    if program.training:
        ahead += _forward_passes(program)
    found: set[Scope] = set()
    for _ in range(DEEPEST):
        ahead = [one for one in dict.fromkeys(ahead) if one not in found]
        found |= {*ahead}
        calls = [call for scope in ahead for call in scope.calls if not _at_times(call, -1)]
        # A draw in a training loop was there already.
        yield from (one for one in calls if not _in_training(one, program))
        ahead = [called for call in calls if (called := program.called(call)) is not None]


def _in_training(call: Call, program: Program) -> bool:
    return any(block.node in program.training for block in call.around)


def _at_times(call: Call, loop: int) -> bool:
    """Whether it is without gradients, or for one step in a number of steps."""
    for block in call.around[loop + 1 :]:
        counts = block.test is not None and any(
            isinstance(one, ast.Mod) for one in ast.walk(block.test)
        )
        if block.kind == "no-grad" or counts:
            return True
    return False


def _forward_passes(program: Program) -> Iterator[Scope]:
    """Those of the script's own models, but for layers that drop a part at random."""
    for owner, bases in program.bases.items():
        scope = program.functions.get(f"{owner}.forward")
        drops = any("drop" in word for word in lower(owner.rpartition(".")[2]))
        made = MODULE in bases and owner in program.by_name
        if made and not drops and scope is not None:
            yield scope


def _seed_of(generator: ast.expr, scope: Scope, program: Program) -> Call | None:
    """What seeds a generator alike on all ranks; None: nothing, or it is not known."""
    name = variable(generator)
    shown = scope.shown(name) if name else (generator,)
    seeds: Sequence[Call] = [
        call
        for call in program.by_name.get(".manual_seed", ())
        if call.node in shown or (name and call.on == name and call.scope.owner == scope.owner)
    ]
    alike = [call for call in seeds if _is_alike(call, program) and not call.tests_rank]
    return alike[0] if alike and len(alike) == len(seeds) else None
