"""Modules that a script freezes by an attribute."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
import torch
from torch import nn

class Net(nn.Module):
    pass

def freeze(module, flag):
    {body}

freeze(Net(), False)
"""


@pytest.mark.parametrize(
    "body",
    [
        "module.train(flag); module.requires_grad = flag",
        "module.requires_grad = False; print(list(module.parameters()))",
        "for layer in module.children(): layer.requires_grad = False",
        "for name, layer in module.named_modules(): layer.requires_grad = flag",
        "net = Net(); net.requires_grad = False",
        "head = nn.Linear(4, 4); head.requires_grad = False",
    ],
)
def test_a_module(script: Read, body: str) -> None:
    (line,) = script(SCRIPT.format(body=body)).frozen_in_vain
    assert ".requires_grad = " in line.text


@pytest.mark.parametrize(
    "body",
    [
        "module.requires_grad_(flag); module.train(flag)",
        "for one in module.parameters(): one.requires_grad = flag",
        "for name, one in module.named_parameters(): one.requires_grad = flag",
        "module.weight.requires_grad = False; module.eval()",
        "x = torch.zeros(4); x.requires_grad = True",
        "weight = nn.Parameter(torch.zeros(4)); weight.requires_grad = False",
        "module.requires_grad = flag",
    ],
)
def test_quiet(script: Read, body: str) -> None:
    assert script(SCRIPT.format(body=body)).frozen_in_vain == ()
