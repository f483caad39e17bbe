"""Objects of the process: also the modules and optimizers that ``gc.freeze`` hides from Python."""

from __future__ import annotations

import gc
import sys
from typing import Any, TypeVar
from weakref import ref

from torch import nn
from torch.optim.optimizer import Optimizer

from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.swaps import replaces

Kind = TypeVar("Kind")
UNDISTURBED_SECONDS = 10.0

_frozen: list[ref[Any]] = []


def install() -> None:
    """Note what the script hides, as ``gc.get_objects`` leaves it out from then on."""
    freeze = gc.freeze

    @replaces(gc, "freeze")
    def noted() -> None:
        _note()
        freeze()


@harmless
def _note() -> None:
    _frozen.extend(map(ref, (*_collected(nn.Module), *_collected(Optimizer))))


def objects(kind: type[Kind]) -> list[Kind]:
    """All objects of a class; hidden ones only of modules and optimizers."""
    found = {id(one): one for one in _collected(kind)}
    for hidden in _frozen:
        one = hidden()
        if one is not None and issubclass(type(one), kind):
            found[id(one)] = one
    return list(found.values())


def _collected(kind: type[Kind]) -> list[Kind]:
    # The list of all objects must be gone before another thread goes on: a tuple that it is just
    # building may have one owner only.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(UNDISTURBED_SECONDS)
    try:
        # Not by isinstance(), which would ask each object for its class.
        return [one for one in gc.get_objects() if issubclass(type(one), kind)]
    finally:
        sys.setswitchinterval(interval)
