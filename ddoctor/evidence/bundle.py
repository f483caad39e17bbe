"""The bundle: evidence as one JSON file, which another machine can diagnose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import entry_points, version
from operator import or_
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import msgspec

from ddoctor import evidence
from ddoctor.errors import DoctorError
from ddoctor.evidence import limits
from ddoctor.evidence.opening import without_waiting
from ddoctor.evidence.section import (
    AttachSection,
    Evidence,
    Known,
    ProbeSection,
    RunSection,
    Section,
)

SCHEMA = 1
DAMAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises; the last one of lists within lists within lists."""


def section_types() -> tuple[type[Section], ...]:
    """Every section type, from all modules of this package."""
    for module in iter_modules(evidence.__path__):
        if module.name != "bundle":
            import_module(f"{evidence.__name__}.{module.name}")
    for point in entry_points(group=evidence.__name__):
        # A broken package is reported where its checks are loaded.
        with suppress(Exception):
            point.load()
    bases = (Section, RunSection, ProbeSection, AttachSection)
    kinds = [
        kind for base in bases for kind in base.__subclasses__() if kind not in (*bases, Known)
    ]
    # Of two with one tag the bundle cannot tell which is meant: ddoctor's own counts.
    kinds.sort(key=lambda kind: kind.__module__.startswith(f"{evidence.__name__}."))
    return tuple({kind.label(): kind for kind in kinds}.values())


def any_section() -> Any:
    """The union of all section types, as msgspec decodes it."""
    return reduce(or_, section_types())


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    ddoctor: str
    created: str


@cache
def _decoder() -> msgspec.json.Decoder[Any]:
    """The decoder, built once for the bundles of all hosts."""
    union: Any = any_section()
    document: Any = msgspec.defstruct("_Document", [("sections", tuple[union, ...])])
    return msgspec.json.Decoder(document)


def write(path: Path, collected: Evidence) -> None:
    """Write a bundle; `DoctorError`: the file cannot be written."""
    document = {
        "schema": SCHEMA,
        "ddoctor": version("ddoctor"),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "sections": list(collected),
    }
    text = msgspec.json.format(msgspec.json.encode(document), indent=1)
    try:
        with open(path, "wb", opener=without_waiting) as file:
            file.write(text + b"\n")
    except OSError as error:
        raise DoctorError(f"cannot write the bundle {path}: {error.strerror}") from error


def read(path: Path) -> Evidence:
    """Read a bundle; unknown fields are ignored.

    Raises:
        DoctorError: the file is unreadable, or as ``decoded``.
    """
    try:
        with open(path, "rb", opener=without_waiting) as file:
            return decoded(file.read(limits.MOST_BYTES + 1), path)
    except OSError as error:
        raise DoctorError(f"cannot read {path}: {error.strerror}") from error


def decoded(text: bytes, path: Path) -> Evidence:
    """The evidence of a bundle's text; ``path`` is for the messages.

    Raises:
        DoctorError: the bundle is damaged, none, too large, or has a newer schema, or holds what
            cannot be (``limits``).
    """
    if len(text) > limits.MOST_BYTES or text.count(b",") > limits.MOST_VALUES:
        raise DoctorError(
            f"{path} is too large for a bundle: it may have {limits.MOST_BYTES >> 20} MiB and "
            f"{limits.MOST_VALUES} values"
        )
    try:
        header = msgspec.json.decode(text, type=_Header)
    except DAMAGE as error:
        raise DoctorError(
            f"{path} is not a whole evidence bundle ({error}); "
            "write one with `ddoctor doctor --bundle PATH`"
        ) from error
    if header.schema > SCHEMA:
        raise DoctorError(
            f"{path} has bundle schema {header.schema}, and this ddoctor reads up to {SCHEMA}: "
            f"upgrade ddoctor to at least {header.ddoctor}"
        )
    try:
        sections = _decoder().decode(text).sections
    except DAMAGE as error:
        raise DoctorError(f"{path} is a damaged evidence bundle: {error}") from error
    for wrong in filter(None, map(limits.impossible, sections)):
        raise DoctorError(f"{path} is a damaged evidence bundle: {wrong}")
    return Evidence(sections)


def read_all(paths: Sequence[Path]) -> Evidence:
    """Read the bundles of several hosts as one evidence.

    Raises:
        DoctorError: as ``read`` and ``together``.
    """
    return together((path, read(path)) for path in paths)


def together(bundles: Iterable[tuple[Path, Evidence]]) -> Evidence:
    """The bundles of several hosts as one evidence.

    Raises:
        DoctorError: two bundles hold the same section of the same host.
    """
    collected: list[Section] = []
    told_by: dict[tuple[type[Section], str], Path] = {}
    for path, sections in bundles:
        for section in sections:
            earlier = told_by.setdefault((type(section), section.host), path)
            if earlier != path:
                host = section.host or "all hosts"
                raise DoctorError(
                    f"{earlier} and {path} both hold {section.label()} of {host}: "
                    "give one bundle per host"
                )
            collected.append(section)
    return Evidence(collected)
