"""The repeated blocks of a model: the units of sharding and of activation checkpointing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Return the blocks of all rows."""
    return [block for row in rows(model) for block in row]


def rows(module: nn.Module) -> Iterator[Sequence[nn.Module]]:
    """Yield rows of equal blocks; no row is within a block of another row."""
    for child in module.children():
        row = tuple(child.children())
        if isinstance(child, nn.ModuleList | nn.Sequential) and _equal(row):
            yield row
        else:
            yield from rows(child)


def _equal(row: Sequence[nn.Module]) -> bool:
    """Whether they are blocks of one class; single layers, such as linear ones, are not blocks."""
    return len({type(_unwrapped(one)) for one in row}) == 1 and all(map(_composed, row))


def _unwrapped(module: nn.Module) -> Any:
    """Return the block within activation checkpointing, which may be around some blocks only."""
    return getattr(module, "_checkpoint_wrapped_module", module)


def _composed(module: nn.Module) -> bool:
    return any(next(one.parameters(), None) is not None for one in module.children())
