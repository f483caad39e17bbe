"""What accelerate prepares: models that it wraps, optimizers, loaders."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.script_source import targets
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall

PREPARED = re.compile(r"(?P<names>[\w., ]+) = [\w.]+\.prepare\(.*", re.DOTALL)
STATE = re.compile(r"(?:[\w.]+\.unwrap_model\()?(?P<model>[\w.]+)\)?\.state_dict\(\)")


def prepared_names(script: Script, whole: str) -> frozenset[str]:
    """The variables that accelerate gets or returns; empty: none, or a line does not show all.

    ``whole``: another method that prepares one thing alone.
    """
    calls = script.of(".prepare")
    names = frozenset(name for one in calls for name in (*one.arguments, *targets(one)))
    hidden = any(name.startswith("*") for name in names) or any(one.of_script for one in calls)
    others = any(whole in one.name for one in script.calls)
    return frozenset() if hidden or others else names


def saved_states(script: Script) -> Iterator[tuple[SourceCall, str]]:
    """Each call of ``torch.save`` with the state of such a model, and the variable of the model."""
    found = (PREPARED.fullmatch(one.at.text) for one in script.of(".prepare"))
    wrapped = {name for one in found if one is not None for name in one["names"].split(", ")}
    for one in script.of("torch.save") if script.of("accelerate.Accelerator") else ():
        state = STATE.fullmatch(next(iter(one.arguments), ""))
        if state is not None and state["model"] in wrapped:
            yield one, state["model"]
