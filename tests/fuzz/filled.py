"""Sections of which every field says something, those that a sound run leaves empty, too."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from ddoctor.evidence import limits
from ddoctor.evidence.section import Section

SIMPLE: Mapping[Any, Any] = {str: "word", int: 2, float: 0.5, bool: True, Any: "x"}
EMPTY: tuple[Any, ...] = (None, (), "", {})

SectionType = TypeVar("SectionType", bound=Section)


def filled(section: SectionType) -> SectionType:
    """The section with a value, made from its type, wherever it has none and one is allowed."""
    told: SectionType = _filled(section)
    return told


def _filled(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_filled, value))
    if not isinstance(value, msgspec.Struct):
        return value
    hints = get_type_hints(type(value), include_extras=True)
    for name in value.__struct_fields__:
        held = getattr(value, name)
        if held not in EMPTY:
            value = _with(value, name, _filled(held))
        elif name != "host":
            value = next(_made_for(value, name, hints[name]), value)
    return value


def _made_for(value: Any, name: str, hint: Any) -> Iterator[Any]:
    """The struct with a value in a field; some fields must be as long as others."""
    others = (getattr(value, other) for other in value.__struct_fields__)
    lengths = dict.fromkeys((2, *(len(other) for other in others if isinstance(other, tuple))))
    made = (_with(value, name, _made(hint, length)) for length in lengths)
    return (one for one in made if one is not value)


def _with(value: Any, name: str, new: Any) -> Any:
    """The struct with a value in a field, or as it was if that cannot be."""
    with suppress(ValueError, msgspec.ValidationError):
        changed = msgspec.structs.replace(value, **{name: new})
        if isinstance(changed, Section) and (wrong := limits.impossible(changed)):
            raise ValueError(wrong)
        return msgspec.json.decode(msgspec.json.encode(changed), type=type(value))
    return value


def _made(hint: Any, length: int = 2) -> Any:
    """A value of a type, a list of this length."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _made(inner[0], length)
    if kind is Literal:
        return inner[-1]
    if kind in (Union, types.UnionType):
        return _made(next(one for one in inner if one is not type(None)), length)
    if kind is tuple:
        return (_made(inner[0]),) * length if inner[-1] is ... else tuple(map(_made, inner))
    if kind is not None and issubclass(kind, Mapping):
        return {_made(inner[0]): _made(inner[1])}
    if issubclass(hint, msgspec.Struct):
        hints = get_type_hints(hint, include_extras=True)
        return hint(**{name: _made(hints[name]) for name in hint.__struct_fields__})
    if issubclass(hint, Enum):
        return next(iter(hint))
    return SIMPLE[hint]
