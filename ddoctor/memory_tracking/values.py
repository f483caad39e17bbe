"""Values of the fake tensors that follow from a batch, not from weights.

What reads images and text looks at values: at the places of images in the text, at their sizes.
A fake tensor has none, so each integer tensor that is made from others with values gets its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

aten = torch.ops.aten
VALUE = aten._local_scalar_dense.default
INDEX = aten.index.Tensor
# Beyond, such as masks of all pairs of tokens, values would cost more time than they are worth.
MOST_BYTES = 2**20


class KnownValues:
    """Knows the values of fake tensors."""

    def __init__(self) -> None:
        self._of = WeakIdKeyDictionary()

    def faked(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the batch on fake tensors, and know the values of those that were real."""
        return {
            name: self._fake(one) if isinstance(one, Tensor) else one for name, one in batch.items()
        }

    def __bool__(self) -> bool:
        """Whether the batch had values."""
        return bool(self._of)

    def run(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an operator with what is known; the result is fake, but for single values."""
        if func is INDEX:
            args = (args[0], [place for one in args[1] for place in self._places(one)])
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        known = all(map(self._knows, given))
        if known and func is VALUE:
            return self._computed(func, args, kwargs)
        if known and torch.Tag.dynamic_output_shape in func.tags:
            return tree_map_only(Tensor, self._fake, self._computed(func, args, kwargs))
        made = func(*args, **kwargs)
        if known and all(map(_kept, tree_leaves(made))):
            real = self._computed(func, args, kwargs)
            for one, value in zip(tree_leaves(made), tree_leaves(real), strict=True):
                self._of[one] = value
        elif func._schema.is_mutable and isinstance(args[0], Tensor):
            self._forget(args[0])
        return made

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        real_args, real_kwargs = tree_map_only(Tensor, self._real, (args, kwargs))
        with _disable_current_modes():
            return func(*real_args, **real_kwargs)

    def _places(self, index: Tensor | None) -> Sequence[Tensor | None]:
        """Return the places that a mask with values selects, as indices of each dimension."""
        if index is None or index.dtype is not torch.bool or not self._knows(index):
            return (index,)
        with _disable_current_modes():
            found = self._real(index).nonzero(as_tuple=True)
        return tuple(map(self._fake, found))

    def _knows(self, one: Tensor) -> bool:
        return one in self._of if isinstance(one, FakeTensor) else _kept(one)

    def _real(self, one: Tensor) -> Tensor:
        return self._of[one] if isinstance(one, FakeTensor) else one

    def _fake(self, real: Tensor) -> Tensor:
        if isinstance(real, FakeTensor):
            return real
        made = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype)
        if _kept(made):
            self._of[made] = real
        return made

    def _forget(self, changed: Tensor) -> None:
        """Forget the values of a tensor that an operator has changed, and of what shares them."""
        if changed in self._of:
            storage = self._of[changed].untyped_storage()._cdata
            alike = [
                one for one in list(self._of) if self._of[one].untyped_storage()._cdata == storage
            ]
            for one in alike:
                del self._of[one]


def _kept(one: object) -> bool:
    """Whether its values are worth to be known: those of few whole numbers."""
    return (
        isinstance(one, Tensor)
        and not (one.dtype.is_floating_point or one.dtype.is_complex)
        and one.untyped_storage().nbytes() <= MOST_BYTES
    )
