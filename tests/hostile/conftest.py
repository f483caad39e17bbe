"""The live trainings of tests/live, for what is looked at here."""

from tests.live.conftest import start

__all__ = ["start"]
