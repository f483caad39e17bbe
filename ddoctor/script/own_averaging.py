"""Models whose gradients the script averages itself, and which each rank begins differently."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ddoctor.script.names import source
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Call
from ddoctor.script.seeding import DEEPEST, is_seeded, with_seeds

REDUCE = "torch.distributed.all_reduce"
MODULE = "torch.nn.Module"
LIBRARIES = ("torchvision.models.", "timm.create_model", "torch.nn.Sequential", "torch.nn.Linear")
GRADIENTS = ("grad", "grads", "gradient", "gradients")
WEIGHTS = frozenset({"parameters", "params", "state", "weights", "buffers"})
EQUALS = frozenset({"broadcast", "pretrained", "restore", "scatter", "checkpoint", "resume"})
"""Words of functions that may give all ranks the same weights."""
OTHER_FILES = ("json.", "yaml.", "numpy.", "pickle.", "tomllib.", "toml.")


@dataclass(frozen=True)
class OwnAveraging:
    """What averages the gradients of a model, and what makes the weights differ."""

    model: Call
    average: Call
    seed: Call | None
    """None: nothing seeds the ranks."""


def own_averaging(program: Program) -> OwnAveraging | None:
    """None: something is missing, or may give the ranks equal weights."""
    reduces = program.by_name.get(REDUCE, ())
    averages = [call for call in reduces if any(map(_is_gradient, ast.walk(call.scope.node)))]
    others = [call for call in reduces if call not in averages and _of_weights(call)]
    if not averages or others or not program.training or any(map(_may_equal, program.calls)):
        return None
    seeded = is_seeded(program)
    for scope in program.scopes:
        for call, seed in with_seeds(scope, program):
            known = seed is not None or not seeded
            if known and not call.around and _makes_model(call, program, DEEPEST):
                return OwnAveraging(call, averages[0], seed)
    return None


def _is_gradient(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and own_name(node) in GRADIENTS


def _of_weights(call: Call) -> bool:
    """Whether it is in a loop over the weights of a model, which it may average."""
    loops = (block.node for block in call.loops)
    return any(isinstance(one, ast.For) and WEIGHTS & lower(source(one.iter)) for one in loops)


def _may_equal(call: Call) -> bool:
    loads = call.method in ("load", "load_state_dict") and not call.name.startswith(OTHER_FILES)
    given = {word.arg for word in call.node.keywords}
    return loads or bool(EQUALS & lower(call.method)) or bool({"weights", "pretrained"} & given)


def _makes_model(call: Call, program: Program, steps: int) -> bool:
    if MODULE in program.bases.get(call.name, ()) or call.name.startswith(LIBRARIES):
        return True
    called = program.called(call)
    inner = called.calls if called is not None and steps and called is not call.scope else ()
    return any(_makes_model(one, program, steps - 1) for one in inner)
