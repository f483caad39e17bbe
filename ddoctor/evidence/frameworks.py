"""The frameworks that run a training loop for a script, and how they write a setting."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ddoctor.evidence.section import Known, Part


class Framework(Part, frozen=True, kw_only=True):
    """One framework."""

    name: str
    files: tuple[str, ...]
    """Parts of the paths of its files that call a pass, an optimizer or a loader."""
    modules: tuple[str, ...]
    """The modules with the classes in ``writes``; none: they are options or a file."""
    writes: Mapping[str, str]
    """How a script sets each setting, with ``{value}``."""
    source: str


class KnownFrameworks(Known, frozen=True, kw_only=True):
    """The frameworks; the first row with a file on the stack applies."""

    table = "frameworks.toml"

    framework: tuple[Framework, ...]

    def used(self, files: Collection[str]) -> str:
        """The framework that these files on the stack show; empty: none."""
        for row in self.framework:
            if any(part in file for part in row.files for file in files):
                return row.name
        return ""

    def writing(self, name: str, setting: str) -> str:
        """How this framework writes the setting; empty: as plain PyTorch does."""
        return next((row.writes.get(setting, "") for row in self.framework if row.name == name), "")
