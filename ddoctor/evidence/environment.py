"""Environment variables that steer a distributed run, and who set them."""

from __future__ import annotations

from typing import Literal

from ddoctor.evidence.section import Part, Section

HIDDEN = "(hidden)"
"""Stands for a value that might be a secret; the value itself is never written."""


class Variable(Part, frozen=True, kw_only=True):
    """One variable as a process started from here would see it."""

    name: str
    value: str
    origin: str = ""
    """The file that sets it (NCCL reads some of its own); empty: the environment."""
    missing: Literal["", "file", "folder"] = ""
    """Of a value that is a path: the file is not there, or not even its folder."""


class Environment(Section, frozen=True, kw_only=True):
    """The variables of an allow-list that are set, each name once, in the order of their names."""

    variables: tuple[Variable, ...] = ()

    def get(self, name: str) -> str | None:
        """The value in force, or None if the variable is not set."""
        return next((one.value for one in self.variables if one.name == name), None)

    def any_with(self, prefix: str) -> bool:
        """Whether a variable with this prefix is set."""
        return any(one.name.startswith(prefix) for one in self.variables)

    def origin(self, name: str) -> str:
        """The file that sets a variable; empty: the environment, or it is not set."""
        return next((one.origin for one in self.variables if one.name == name), "")
