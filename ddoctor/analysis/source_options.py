"""What the options that a source reads are in a launch."""

from __future__ import annotations

from ddoctor.evidence.launch import Launch, Setting

CONFIGS = (".yaml", ".yml", ".json", ".toml", ".py")
"""Ends of files that may set an option otherwise than its class does."""


def in_launch(option: str, given: str, launch: Launch | None) -> tuple[Setting | None, str | None]:
    """What sets an option, ``model.bins``, and its value; None: not known.

    ``given`` is its value in the source, where nothing else sets it; empty: there is none.
    """
    last = option.rpartition(".")[2]
    if launch is not None:
        if launch.get(f"arg.no_{last}") is not None:
            return None, None
        found = launch.get(f"arg.{option}", f"arg.{last}") or _nested(last, launch)
        if found is not None:
            return found, found.value
        if any(one.value.endswith(CONFIGS) for one in launch.settings if one.name[:4] == "arg."):
            return None, None
    return None, given or None


def _nested(last: str, launch: Launch) -> Setting | None:
    """The option in one section of the configuration; None: none has it, or several have."""
    found = [one for one in launch.settings if one.name.endswith(f".{last}")]
    values = {one.value for one in found}
    return found[0] if len(values) == 1 else None
