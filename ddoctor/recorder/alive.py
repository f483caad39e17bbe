"""Objects of the process: also the modules and optimizers that ``gc.freeze`` hides from Python."""

from __future__ import annotations

import gc
from functools import partial
from itertools import chain, compress, repeat
from typing import Any, TypeVar
from weakref import ref

from torch import nn
from torch.optim.optimizer import Optimizer

from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.swaps import replaces
from ddoctor.recorder.undisturbed import at_once, call

Kind = TypeVar("Kind")

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
    """What is of a class, by its type: isinstance() would ask each object for its class.

    The list of all objects is gone before another thread runs: a tuple that it is just building may
    have one owner only.
    """
    everything: list[Any] = []
    found: list[Kind] = []
    of_kind = map(issubclass, map(type, everything), repeat(kind))
    at_once(
        partial(everything.extend, chain.from_iterable(map(call, (partial(gc.get_objects),)))),
        partial(found.extend, compress(everything, of_kind)),
        partial(everything.clear),
    )
    return found
