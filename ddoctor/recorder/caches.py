"""Caches without a limit that functions of the user's have, by ``functools``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ddoctor.evidence.steps import Cache
from ddoctor.recorder import alive, places
from ddoctor.recorder.harmless import harmless

Sizes = Mapping[int, tuple[int, int]]
"""Entries and hits, by the identity of the cached function."""


def sizes() -> Sizes:
    """Those of all such caches now."""
    return {id(one): _size(one) for one in _unlimited() or ()}


def grown(before: Sizes) -> tuple[Cache, ...]:
    """The caches with more entries than ``before``, by growth."""
    found = []
    for one in _unlimited() or ():
        entries, hits = _size(one)
        had, had_hit = before.get(id(one), (0, 0))
        code = one.__wrapped__.__code__
        if entries > had:
            found.append(
                Cache(
                    file=places.short(code.co_filename),
                    line=code.co_firstlineno,
                    function=getattr(one, "__qualname__", code.co_name),
                    added=entries - had,
                    hits=hits - had_hit,
                )
            )
    return tuple(sorted(found, key=lambda cache: -cache.added))


@harmless
def _unlimited() -> list[Any]:
    kind: Any = functools._lru_cache_wrapper
    every: list[Any] = alive.objects(kind)
    return [
        one
        for one in every
        if one.cache_parameters()["maxsize"] is None
        and hasattr(one.__wrapped__, "__code__")
        and places.of_user(one.__wrapped__.__code__.co_filename)
    ]


def _size(one: Any) -> tuple[int, int]:
    info = one.cache_info()
    return info.currsize, info.hits
