"""The layers of which a script's own models consist, where no other package brings any."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddoctor.script.modules import Module
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Scope, Walk

TORCH = "torch.nn."
MODULE = f"{TORCH}Module"
WITHOUT_LAYERS = frozenset(
    (
        *("torch", "accelerate", "numpy", "tqdm", "yaml", "datasets", "tokenizers", "PIL"),
        *("omegaconf", "hydra", "wandb", "tensorboard", "rich", "psutil", "pandas", "sklearn"),
        *("safetensors", "tiktoken", "evaluate", "matplotlib", "ddoctor"),
    )
)
"""Packages that bring no layers but those of ``torch.nn``."""


@dataclass(frozen=True, eq=False)
class OwnLayer:
    """A class of the script that is a layer or a model, or a layer of torch that it makes."""

    name: str
    node: ast.AST
    """The class, or the first call."""
    around: Scope
    repeated: bool
    """Whether a loop or a comprehension makes several of it."""
    of_torch: bool = False


def own_layers(walks: Sequence[Walk], program: Program) -> Iterator[OwnLayer]:
    """All of them; none: the models may have layers of other packages."""
    modules = [walk.scopes[0].module for walk in walks]
    own = {module.name.partition(".")[0] for module in modules}
    known = WITHOUT_LAYERS | own | sys.stdlib_module_names
    if any(module.nodes.packages - known for module in modules):
        return
    repeated = {*_made_several_times(modules, program)}
    for walk in walks:
        for node, around in walk.classes:
            if _is_layer(f"{around.module.name}.{node.name}", program):
                yield OwnLayer(node.name, node, around, node.name in repeated)
    of_torch = {call.name: call for call in reversed(program.calls) if call.name.startswith(TORCH)}
    for name, call in of_torch.items():
        made = name.removeprefix(TORCH)
        yield OwnLayer(made, call.node, call.scope, made in repeated, of_torch=True)


def _is_layer(name: str, program: Program) -> bool:
    """Whether a class descends from ``torch.nn.Module``."""
    seen, ahead = set[str](), [name]
    while ahead:
        one = ahead.pop()
        if one == MODULE:
            return True
        if one not in seen:
            seen.add(one)
            ahead += program.bases.get(one, ())
    return False


def _made_several_times(modules: Sequence[Module], program: Program) -> Iterator[str]:
    """The names that a loop or a comprehension calls."""
    yield from (call.method for call in program.calls if call.loops)
    for module in modules:
        for node in module.nodes.of(ast.ListComp, ast.GeneratorExp):
            for part in ast.walk(node.elt):
                if isinstance(part, ast.Call):
                    yield own_name(part.func)
