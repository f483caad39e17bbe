"""Environment variables that steer a distributed run, and who set them."""

from __future__ import annotations

import shlex
from typing import Literal

from ddoctor.evidence.section import Part, Section
from ddoctor.models import Fix

HIDDEN = "(hidden)"
"""Stands for a value that might be a secret; the value itself is never written."""

SCRIPTS = "and in the script, job file or profile that sets it"
ADMINISTRATOR = "the file belongs to the administrator"


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

    def unset(self, name: str) -> Fix:
        """The line that takes a variable back, in the shell or in the file that sets it."""
        origin = self._origin(name)
        if not origin:
            return Fix(
                summary=f"unset {name}",
                paste=f"unset {name}",
                caution=SCRIPTS,
                environment=(name,),
            )
        return Fix(
            summary=f"take {name} out of {origin}",
            paste=f"sed -i '/^{name}=/d' {origin}",
            caution=ADMINISTRATOR if origin.startswith("/etc/") else "",
        )

    def rewrite(self, name: str, new_name: str, value: str) -> Fix:
        """The lines that put another name or value in place of a variable."""
        origin = self._origin(name)
        setting = f"{new_name}={value}"
        if not origin:
            drop = f"unset {name}\n" if new_name != name else ""
            quoted = shlex.quote(value)
            return Fix(
                summary=f"set {setting}",
                paste=f"{drop}export {new_name}={quoted}",
                caution=SCRIPTS,
            )
        old = self.get(name) or ""
        return Fix(
            summary=f"write {setting} in {origin}",
            paste=f"-{name}={old}\n+{setting}",
            language="diff",
            caution=ADMINISTRATOR if origin.startswith("/etc/") else "",
        )

    def _origin(self, name: str) -> str:
        return next((one.origin for one in self.variables if one.name == name), "")
