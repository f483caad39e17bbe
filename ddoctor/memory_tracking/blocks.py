"""What a model repeats: the blocks that are sharded, and computed again, each by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Those of all rows."""
    return [block for row in rows(model) for block in row]


def rows(module: nn.Module) -> Iterator[Sequence[nn.Module]]:
    """Rows of equal blocks, none of them inside of another's block."""
    for child in module.children():
        row = tuple(child.children())
        if isinstance(child, nn.ModuleList | nn.Sequential) and _equal(row):
            yield row
        else:
            yield from rows(child)


def _equal(row: Sequence[nn.Module]) -> bool:
    """Whether they are blocks of one class; a row of, say, linear layers is none of blocks."""
    return len({type(one) for one in row}) == 1 and all(map(_composed, row))


def _composed(module: nn.Module) -> bool:
    return any(next(one.parameters(), None) is not None for one in module.children())
