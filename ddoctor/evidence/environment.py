"""Environment variables that control a distributed run, and where they are set."""

from __future__ import annotations

from typing import ClassVar, Literal

from ddoctor.evidence.section import Part, Section
from ddoctor.models import Command

HIDDEN = "(hidden)"
"""Replaces a value that might be a secret; the value itself is never written."""


class Variable(Part, frozen=True, kw_only=True):
    """One variable as a process started here would see it."""

    name: str
    value: str
    origin: str = ""
    """The file that sets it (NCCL reads its own configuration files); empty: the environment."""
    missing: Literal["", "file", "folder"] = ""
    """For a path: whether the file is missing, or even its folder; empty: neither."""


class Environment(Section, frozen=True, kw_only=True):
    """The allow-listed variables that are set, each once, sorted by name."""

    commands: ClassVar[tuple[Command, ...]] = ("doctor", "probe", "run")

    variables: tuple[Variable, ...] = ()

    def get(self, name: str) -> str | None:
        """The value in force; None if the variable is not set."""
        return next((one.value for one in self.variables if one.name == name), None)

    def any_with(self, prefix: str) -> bool:
        """Whether any variable with this prefix is set."""
        return any(one.name.startswith(prefix) for one in self.variables)

    def origin(self, name: str) -> str:
        """The file that sets a variable; empty: the environment, or it is not set."""
        return next((one.origin for one in self.variables if one.name == name), "")
