"""Python's garbage collector in this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_rest() -> Iterator[None]:
    """Free no cycles meanwhile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def old_objects_left_alone() -> Iterator[None]:
    """Keep collections from visiting what existed before: modules have a million objects."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
