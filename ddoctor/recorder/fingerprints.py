"""Fingerprints of data, which tell whether ranks have the same."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import IOBase
from itertools import islice
from math import sqrt
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import nn

from ddoctor.recorder.harmless import harmless

# Of a tensor's values; enough to tell two samples apart.
PRINTED_VALUES = 4096
# Of a long list, at either end.
PRINTED_ITEMS = 64
MOST_FIELDS, DEEPEST = 2000, 6
PLAIN = (str, bytes, int, float, complex, bool, type(None), os.PathLike, slice, range)
NAMED = (type, FunctionType, BuiltinFunctionType, MethodType, torch.dtype, torch.device)
# What changes items, and holds none.
OF_NO_DATA = (nn.Module, torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
HOLDERS = (list, tuple, np.ndarray, torch.Tensor)
MOST_ITEMS = 200_000
"""Of a dataset whose fields are compared: they take a tenth of a second."""
# In standard errors: beyond, values are not what is expected.
FAR = 4.0
FEWEST_VALUES = 64


@harmless
def of_tensors(tensors: Sequence[torch.Tensor]) -> str:
    """Fingerprint; empty: no value is readable, as for a sparse tensor."""
    if not tensors:
        return ""
    number = 0
    for tensor in tensors:
        values = _first(tensor).contiguous()
        # Their bytes: numpy has no bfloat16, and text takes a millisecond.
        number = crc32(values.view(torch.uint8).numpy().data, number)
    return f"{number:08x}"


@harmless
def random_numbers(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all that varies looks like random numbers: normal, or uniform.

    By the mean and the deviation of each tensor: normal with 0 and 1, uniform between the least
    and the largest value; and a value tells nothing of the next.
    """
    drawn = []
    for tensor in tensors:
        values = _first(tensor).double()
        least, most = float(values.min()), float(values.max())
        if len(values) < FEWEST_VALUES or least == most:
            continue
        whole = not tensor.is_floating_point()
        # Between whole numbers, of which the largest counts, too.
        middle, spread = (least + most) / 2, (most - least + whole) / sqrt(12)
        alone = _as_expected(values, 0, 1) or _as_expected(values, middle, spread)
        pairs = torch.corrcoef(torch.stack((values[1:], values[:-1])))
        drawn.append(alone and abs(float(pairs[0, 1])) <= FAR / sqrt(len(values)))
    return bool(drawn) and all(drawn)


def _as_expected(values: torch.Tensor, mean: float, deviation: float) -> bool:
    error = deviation / sqrt(len(values))
    near = abs(float(values.mean()) - mean) <= FAR * error
    return near and abs(float(values.std()) - deviation) <= FAR * error


def _first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)[:PRINTED_VALUES].cpu()


@harmless
def of_dataset(dataset: Any) -> str:
    """Fingerprint of its fields; None where one of them hides what it holds, as an open file."""
    number = 0
    for part in islice(_parts(dataset, DEEPEST), MOST_FIELDS):
        number = crc32(part.encode(errors="replace"), number)
    return f"{number:08x}"


@harmless
def of_items(dataset: Any) -> dict[str, tuple[int, int]]:
    """Two fingerprints of each field with a text or a whole number for each item, by its name.

    The second one is the same in any order. Fields of a dataset within it count as well, such as
    the one of a ``Subset``.
    """
    found = {}
    holders: tuple[tuple[Any, str], ...] = (
        (dataset, ""),
        (getattr(dataset, "dataset", None), "dataset."),
    )
    for holder, prefix in holders:
        fields = getattr(holder, "__dict__", {})
        count = len(holder) if fields else 0
        for name, value in islice(fields.items(), PRINTED_ITEMS):
            if isinstance(value, HOLDERS) and 1 < len(value) == count <= MOST_ITEMS:
                items = _plain_items(value)
                if items is not None:
                    prints = [crc32(repr(one).encode(errors="replace")) for one in items]
                    found[f"{prefix}{name}"] = crc32(str(prints).encode()), sum(prints)
    return found


def _plain_items(value: Any) -> Sequence[Any] | None:
    """None where they are no texts and no whole numbers."""
    if isinstance(value, torch.Tensor):
        whole = value.dim() == 1 and value.device.type == "cpu" and not value.is_floating_point()
        return value.tolist() if whole else None
    if isinstance(value, np.ndarray):
        return value.tolist() if value.ndim == 1 and value.dtype.kind in "iuUS" else None
    return value if all(isinstance(one, str | int | os.PathLike) for one in value) else None


def _parts(value: Any, depth: int) -> Iterator[str]:
    """Text for all that it holds; raises TypeError where that is not known."""
    if isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, torch.Tensor):
        yield f"{tuple(value.shape)} {of_tensors([value])}"
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            yield from _parts(value.reshape(-1)[:PRINTED_ITEMS].tolist(), depth)
        else:
            held = value.reshape(-1)[:PRINTED_VALUES]
            yield f"{value.shape} {crc32(held.tobytes()):08x}"
    elif isinstance(value, NAMED):
        yield getattr(value, "__qualname__", str(value))
    elif depth == 0 or isinstance(value, IOBase):
        raise TypeError
    elif isinstance(value, partial):
        yield from _parts((value.func, value.args, value.keywords), depth - 1)
    elif isinstance(value, Mapping):
        yield str(len(value))
        for key, held in islice(value.items(), PRINTED_ITEMS):
            yield repr(key)
            yield from _parts(held, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        yield str(len(value))
        ends = (
            value if not isinstance(value, list) else value[:PRINTED_ITEMS] + value[-PRINTED_ITEMS:]
        )
        for held in islice(ends, 2 * PRINTED_ITEMS):
            yield from _parts(held, depth - 1)
    elif isinstance(value, OF_NO_DATA):
        yield type(value).__qualname__
    else:
        yield type(value).__qualname__
        yield from _parts(vars(value), depth - 1)
