"""Steps that nothing interrupts, and what looks at all objects that way."""

from __future__ import annotations

import gc
import sys
from functools import partial
from itertools import repeat

import pytest
from torch import nn

from ddoctor.recorder import alive
from ddoctor.recorder.undisturbed import at_once


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_in_the_middle(enabled: bool) -> None:
    collected: list[str] = []
    made: list[list[object]] = []
    until_then: list[str] = []

    def note(phase: str, info: object) -> None:
        collected.append(phase)

    usual = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(note)
    gc.set_threshold(500)
    if not enabled:
        gc.disable()
    try:
        at_once(
            partial(made.extend, map(list, repeat((), 5000))),
            partial(until_then.extend, collected),
        )
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
        gc.set_threshold(*usual)
        gc.callbacks.remove(note)
    assert len(made) == 5000
    assert until_then == []


def test_garbage_is_collected_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        at_once(partial(int, "one"))
    assert gc.isenabled()


def test_modules_of_a_class_are_found_and_nothing_more_refers_to_them() -> None:
    layer = nn.Linear(2, 2)
    owners = sys.getrefcount(layer)
    found = alive.objects(nn.Linear)
    assert any(one is layer for one in found)
    assert all(type(one) is nn.Linear for one in found)
    del found
    assert sys.getrefcount(layer) == owners


def test_no_object_is_asked_for_its_class() -> None:
    asked: list[object] = []

    def pretend(proxy: object) -> type:
        asked.append(proxy)
        return nn.Linear

    proxy = type("Proxy", (), {"__class__": property(pretend)})()
    assert not any(one is proxy for one in alive.objects(nn.Linear))
    assert asked == []


def test_the_switch_interval_stays() -> None:
    usual = sys.getswitchinterval()
    alive.objects(nn.Module)
    assert sys.getswitchinterval() == usual
