"""What a model repeats: the blocks that are sharded, and computed again, each by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Of the kind that the longest row of equal ones is of, outside of one another."""
    kind = block_class(model)
    return list(_outermost(model, kind)) if kind is not None else []


def block_class(model: nn.Module) -> type[nn.Module] | None:
    """The class that repeats most often in one row; None: nothing does."""
    rows = [Counter(map(type, one)) for one in model.modules() if isinstance(one, nn.ModuleList)]
    rows += [Counter(map(type, one)) for one in model.modules() if type(one) is nn.Sequential]
    found = [(number, kind) for row in rows for kind, number in row.items() if number > 1]
    # Of equally long rows the first, which is the outermost.
    return max(found, key=lambda one: one[0])[1] if found else None


def _outermost(module: nn.Module, kind: type[nn.Module]) -> Sequence[nn.Module]:
    if isinstance(module, kind):
        return [module]
    return [found for child in module.children() for found in _outermost(child, kind)]
