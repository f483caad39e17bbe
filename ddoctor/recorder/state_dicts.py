"""State dicts that a script loads with ``strict=False``, and of which the model takes nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

from ddoctor.evidence.training import NotLoaded
from ddoctor.recorder import user_calls
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.swaps import replaces


class StateDicts:
    """Follows what the models of a script load."""

    def __init__(self) -> None:
        self.not_loaded: NotLoaded | None = None
        """The first that a model took nothing of, and no other one since then."""
        self._by = 0
        """The identity of that model."""

    def install(self) -> None:
        """Follow them, before the script runs."""
        load: Any = nn.Module.load_state_dict

        @replaces(nn.Module, "load_state_dict")
        def loaded(this: nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            result = load(this, state_dict, *args, **kwargs)
            self._note(this, state_dict, result)
            return result

    @harmless
    def _note(self, model: nn.Module, state_dict: Mapping[str, Any], result: Any) -> None:
        unexpected, missing = result.unexpected_keys, result.missing_keys
        if len(state_dict) > len(unexpected):
            # Some scripts try one form of the names after the other.
            if self._by == id(model):
                self.not_loaded = None
        elif self.not_loaded is None and missing and unexpected:
            self._by = id(model)
            calls = user_calls.calls(sys._getframe())
            self.not_loaded = NotLoaded(
                at=user_calls.frame(*calls[-1]) if calls else None,
                entries=len(unexpected),
                has=unexpected[0],
                lacks=missing[0],
            )
