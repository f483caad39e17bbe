"""FSDP as transformers' Trainer gets it: by ``--fsdp`` and the file that ``--fsdp_config`` names.

Source: transformers/training_args.py, _process_fsdp_args.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace as with_fields

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting
from ddoctor.launch import files, modules

ON, CONFIG = "arg.fsdp", "arg.fsdp_config"
OFF = ("", "false", "none", "null")
DEFAULT_VERSION = re.compile(r"""fsdp_config\.get\("(?:fsdp_)?version", (\d)\)""")


def read(told: Sequence[Setting], folder: Path) -> Iterator[Setting]:
    """Its settings, each as accelerate's file has it, and ``trainer.strategy``.

    Nothing: no Trainer is asked for FSDP.
    """
    given = {one.name: one for one in reversed(told)}
    asked, named = given.get(ON), given.get(CONFIG)
    if asked is None or asked.value.lower() in OFF or "trainer" not in given:
        return
    yield with_fields(asked, name="trainer.strategy", value="fsdp")
    if named is not None and named.value.endswith(".json"):
        yield from _of_file(named, folder)
    # Newer versions wrap the model's own blocks in any case.
    if "auto_wrap" in asked.value:
        wraps = "TRANSFORMER_BASED_WRAP"
        yield with_fields(asked, name="fsdp.auto_wrap_policy", value=wraps)
    yield from _version()


def _of_file(named: Setting, folder: Path) -> Iterator[Setting]:
    try:
        found = files.settings(folder / named.value, named.value)
    except DoctorError as error:
        yield with_fields(named, name="unreadable", value=str(error))
        return
    for one in found:
        yield with_fields(one, name=f"fsdp.{one.name.removeprefix('fsdp_')}")


def _version() -> Iterator[Setting]:
    """The default of the installed transformers: 2 since its version 5."""
    installed = modules.installed("transformers", "training_args.py")
    source = files.text(installed.path, installed.path.name) if installed is not None else ""
    if found := DEFAULT_VERSION.search(source):
        origin = "the default of TrainingArguments"
        yield Setting(name="fsdp.version", value=found[1], origin=origin)
