"""Real faults: provoked on this machine, and told by the whole command line."""

from __future__ import annotations

from tests.conftest import Doctor, Examined

__all__ = ["Doctor", "Examined"]
