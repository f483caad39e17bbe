"""Where a script makes parts of a model in 16 bits float32, so that layers have both types."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope

LOADS = ("from_pretrained", "from_config")
TYPES = ("torch_dtype", "dtype")
HALVES = re.compile(r"(?:torch\.|['\"])(?:bfloat16|float16|half)\b")
WHOLE = re.compile(r"(?:torch\.|['\"])float(?:32)?\b")
CASTS = ("to", "float", "half", "bfloat16", "double")
PARTS = re.compile(r"(?:^|\.)(?:(?:lm_|output_)?head|embed\w*|wte|wpe|ln_\w+|\w*norm\w*)$")
"""Parts of transformers that no policy by blocks wraps alone: heads, embeddings, norms."""
OF_LAYERS = re.compile(r"\.(?:layers?|h|blocks?)$")
OF_DEVICES = re.compile(r"(?i)device|rank|cuda|['\"]cpu")
BY_NAME = re.compile(r"['\"][\w.]*norm[\w.]*['\"] in \w+")
"""A test of the name of a module, in a loop over all of them."""


@dataclass(frozen=True)
class MixedTypes:
    """A part of a model that gets another type than the rest."""

    call: Call
    loaded: Call
    """What loads the model."""
    model: str
    """The variable that holds it."""


def mixed_types(program: Program) -> Iterator[MixedTypes]:
    """The first such cast of each model."""
    for scope in program.scopes:
        for loaded, model in _halves(scope):
            later = [one for one in scope.calls if one.node.lineno > loaded.node.lineno]
            casts = [one for one in later if one.method in CASTS]
            if any(one.on == model and _gives_one_type(one) for one in program.calls):
                continue
            found = next((one for one in casts if _widens(one) and _is_part(one, model)), None)
            if found is not None:
                yield MixedTypes(found, loaded, model)


def _halves(scope: Scope) -> Iterator[tuple[Call, str]]:
    """What loads a model in 16 bits, and the variable that gets it."""
    for call in scope.calls:
        words = {one.arg: one.value for one in call.node.keywords}
        given = next((words[name] for name in TYPES if name in words), None)
        quantized = any("quant" in (name or "") or "load_in" in (name or "") for name in words)
        node = call.statement
        alone = isinstance(node, ast.Assign) and node.value is call.node
        if call.method in LOADS and given is not None and alone and not quantized:
            shown = (given, *scope.shown(variable(given)))
            target = variable(node.targets[0])  # type: ignore[attr-defined]
            # An option may choose another type.
            if target and HALVES.search(source(shown[-1])) and len(shown) < 3:
                yield call, target


def _widens(call: Call) -> bool:
    """Whether every run casts to float32."""
    given = [source(one) for one in call.node.args]
    given += [source(one.value) for one in call.node.keywords]
    to = call.method == "float" or (call.method == "to" and any(map(WHOLE.match, given)))
    return to and all(one.kind == "loop" or _by_name(one.test) for one in call.around)


def _by_name(test: ast.expr | None) -> bool:
    return test is not None and BY_NAME.search(source(test)) is not None


def _gives_one_type(call: Call) -> bool:
    """Whether it may cast a whole model, and not only move it."""
    moves = [OF_DEVICES.search(source(one)) for one in call.node.args]
    return call.method in CASTS and not (call.method == "to" and moves and all(moves))


def _is_part(call: Call, model: str) -> bool:
    """Whether it casts a part, and not whole layers, of this model."""
    root, _, inner = call.on.partition(".")
    if call.on.startswith(f"{model}.") and not call.loops:
        return PARTS.search(call.on) is not None
    loop = call.loops[-1].node if call.loops else None
    if not isinstance(loop, ast.For) or root not in {*map(variable, ast.walk(loop.target))}:
        return False
    taken = loop.iter
    if not inner and isinstance(taken, ast.Call):
        named = variable(taken.func) == f"{model}.named_modules"
        return named and any(_by_name(one.test) for one in call.around)
    layers = variable(taken)
    of_layers = layers.startswith(f"{model}.") and OF_LAYERS.search(layers) is not None
    return of_layers and PARTS.search(inner) is not None
