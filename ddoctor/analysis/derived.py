"""What several checks need, computed from sections once and handed to each as a parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Derived(ABC):
    """Facts that are computed from sections; a check asks for them by type, as for a section.

    The types of ``derive``'s parameters name the sections, by the rules of a check's own
    parameters. Where one of them is missing, the check is skipped for that reason.
    """

    @classmethod
    @abstractmethod
    def derive(cls, *sections: Any, **more: Any) -> Derived:
        """Compute it; called once for each distinct set of sections."""
