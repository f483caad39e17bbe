"""What is called in every step is out of its place while the recorder rests."""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddoctor.recorder.swaps import Swaps


class Base:
    def __call__(self) -> str:
        return "base"


class Model(Base):
    """Has no ``__call__`` of its own."""


def ours(self: object = None) -> str:
    return "ours"


@pytest.fixture
def swaps() -> Swaps:
    """With something put in two places."""
    return Swaps()


def test_out_and_back(swaps: Swaps) -> None:
    library = SimpleNamespace(backward=len)
    kind: Any = type("Mine", (Model,), {})
    swaps.put(library, "backward", ours)
    swaps.put(kind, "__call__", ours)
    assert (library.backward, kind()()) == (ours, "ours")
    for _ in range(2):
        swaps.out()
        assert (library.backward, kind()()) == (len, "base")
        assert "__call__" not in vars(kind)
        swaps.back()
        assert (library.backward, kind()()) == (ours, "ours")


def test_what_others_have_put_there_stays(swaps: Swaps) -> None:
    library = SimpleNamespace(backward=len)
    swaps.put(library, "backward", ours)
    library.backward = print
    swaps.out()
    assert library.backward is print
    swaps.back()
    assert library.backward is print


def test_what_others_put_there_meanwhile_stays(swaps: Swaps) -> None:
    library = SimpleNamespace(backward=len)
    swaps.put(library, "backward", ours)
    swaps.out()
    library.backward = print
    swaps.back()
    assert library.backward is print


def test_a_hook_of_torch(swaps: Swaps) -> None:
    called = []
    swaps.hook(register_optimizer_step_pre_hook, lambda *_: called.append(1))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.step()
    assert len(called) == 1
    swaps.out()
    optimizer.step()
    assert len(called) == 1
    swaps.back()
    optimizer.step()
    assert len(called) == 2
    swaps.out()


def test_not_where_anything_was_compiled(swaps: Swaps, monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(backward=len)
    swaps.put(library, "backward", ours)
    dynamo = SimpleNamespace(counters={"frames": Counter(total=1)})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", dynamo)
    swaps.out()
    assert library.backward is ours
