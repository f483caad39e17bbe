"""The version of a package that a launch will use."""

from __future__ import annotations

from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.software import Software


def version(package: str, launch: Launch, software: Software | None) -> Setting | None:
    """What a file of the project pins, or what is installed here; None: neither is known."""
    pinned = launch.get(f"pin.{package}")
    if pinned is not None:
        return pinned
    installed = software.version(package) if software is not None else None
    if installed is None:
        return None
    return Setting(name=f"pin.{package}", value=installed, origin="installed here")
