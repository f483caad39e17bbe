"""What a script is composed of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Part:
    """Text for some slots of a script: a slot is a line that says ``[[its name]]``."""

    name: str
    slots: Mapping[str, str]
    values: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """What is drawn for names that its text has."""


@dataclass(frozen=True, kw_only=True)
class Fault(Part):
    """What makes a script sick; the user's lines to be named end in ``# HERE``."""

    roots: tuple[str, ...]
    """The causes to be told first, any of them."""
    ranked: bool = False
    """Whether the drawn rank is the one to be named."""
    rank: int | None = None
    """The rank it has to be in, where only one makes sense."""
    loaders: tuple[str, ...] = ()
    """The loaders it can be in; none: all that have its slots."""
    loops: tuple[str, ...] = ()
    """The loops it can be in; none: all that have its slots."""
    per: str = "step"
    """How often the step pays ``--cost-ms``: ``step``, ``item``, ``every``; ``never``: no dose."""
    live: bool = True
    """Whether a look at the live run can see it."""


@dataclass(frozen=True, kw_only=True)
class Loader(Part):
    """Where the batches come from."""

    hidden: bool = False
    """Whether its items are made beside the step."""
