"""The available probes, read without importing them (and torch)."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ddoctor import discovery
from ddoctor.errors import unknown

PACKAGE = "ddoctor.probes"


def names() -> tuple[str, ...]:
    """The names of all probes."""
    return tuple(sorted(offer.name for offer in discovery.usable(PACKAGE)))


def describe(name: str) -> str:
    """One line about what a probe measures, read without importing it (and torch)."""
    return (ast.get_docstring(_source(name)) or "").partition("\n")[0]


def spans_hosts(name: str) -> bool:
    """Whether a probe compares hosts and needs several: its module sets SPANS_HOSTS = True."""
    return _says(name, "SPANS_HOSTS")


def usual() -> tuple[str, ...]:
    """The default probes: all modules that do not set ONLY_IF_NAMED = True."""
    return tuple(name for name in names() if not _says(name, "ONLY_IF_NAMED"))


def _says(name: str, constant: str) -> bool:
    return any(
        isinstance(line, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == constant for t in line.targets)
        for line in _source(name).body
    )


def _source(name: str) -> ast.Module:
    # A broken probe of another package fails when it runs, and the report says why.
    with suppress(Exception):
        found = find_spec(discovery.offer(PACKAGE, name).module)
        if found is not None and found.origin is not None:
            return ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    return ast.Module(body=[], type_ignores=[])


def choose(named: Sequence[str] | None) -> tuple[str, ...]:
    """The probes to run: those named, or all defaults that need only one host.

    Raises:
        DoctorError: no probe has that name.
    """
    known = names()
    wanted = named or [name for name in usual() if not spans_hosts(name)]
    chosen = tuple(dict.fromkeys(name.replace("-", "_") for name in wanted))
    for name in chosen:
        if name not in known:
            raise unknown("probe", name, known)
    return chosen
