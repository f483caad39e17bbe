"""Hooks that a script adds to its modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddoctor.recorder import module_hooks, places

SCRIPT = """
def read(layer, found):
    def hook(module, inputs, output):
        found.append(output)
    return layer.register_forward_hook(hook)
"""


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Any]:
    """A function of a script that registers a hook at line 5."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    names: dict[str, Any] = {}
    exec(compile(SCRIPT, str(script), "exec"), names)
    assert places.of_user(str(script))
    found: Callable[..., Any] = names["read"]
    return found


def test_those_of_one_function_are_counted(read: Callable[..., Any]) -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    read(layers[0], [])
    before = module_hooks.counted()
    for _ in range(3):
        for layer in layers:
            read(layer, [])
    found = module_hooks.added(before)
    assert found is not None
    assert found.number == 6
    assert (found.line.line, found.line.text) == (5, "return layer.register_forward_hook(hook)")


def test_those_that_are_removed_do_not_count(read: Callable[..., Any]) -> None:
    layer = nn.Linear(2, 2)
    before = module_hooks.counted()
    for _ in range(3):
        handle = read(layer, [])
        layer(torch.ones(1, 2))
        handle.remove()
    assert module_hooks.added(before) is None


def test_those_of_libraries_do_not_count() -> None:
    layer = nn.Linear(2, 2)
    before = module_hooks.counted()
    nn.utils.parametrizations.weight_norm(layer)
    layer.register_forward_hook(print)
    assert module_hooks.added(before) is None
