"""Keys of TrainingArguments' ``fsdp_config`` and ``accelerator_config`` that transformers ignores
or refuses.

Sources: transformers/training_args.py; transformers/trainer_pt_utils.py, AcceleratorConfig.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace as with_fields

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Launch, Setting, Unknown
from ddoctor.evidence.source_text import nodes
from ddoctor.launch import files, modules
from ddoctor.launch.nearest import nearest
from ddoctor.launch.option_source import named

READ_BY = ("training_args.py", "trainer.py", "integrations/fsdp.py")
FSDP = "fsdp_config"
ACCELERATOR = "accelerator_config"


def unknown(launch: Launch, folder: Path) -> Iterator[Unknown]:
    """Yield them for a script that trains with transformers' TrainingArguments."""
    if found := [*_given(launch, folder, FSDP)]:
        yield from _ignored(found)
    if found := [*_given(launch, folder, ACCELERATOR)]:
        module = modules.installed("transformers", "trainer_pt_utils.py")
        known = modules.fields("AcceleratorConfig", module) if module is not None else None
        for one in found if known is not None else ():
            if one.name not in known:  # type: ignore[operator]
                near = nearest(one.name, known or ())
                yield Unknown(setting=one, of=f"transformers' {ACCELERATOR}", nearest=near)


def _ignored(given: Sequence[Setting]) -> Iterator[Unknown]:
    """A key counts as known if the sources have the word anywhere."""
    found = [modules.installed("transformers", one) for one in READ_BY]
    sources = [one for one in found if one is not None]
    known = {key for one in sources for key in _keys(one.tree)}
    texts = [files.text(one.path, one.path.name) for one in sources]
    for one in given if known else ():
        key = one.name.removeprefix("fsdp_")
        said = any(re.search(rf"\b(?:fsdp_)?{re.escape(key)}\b", text) for text in texts)
        if not said and (near := nearest(key, known)):
            yield Unknown(setting=one, of=f"transformers' {FSDP}", nearest=near, ignored=True)


def _keys(tree: ast.Module) -> Iterator[str]:
    """The keys that a source asks for, as ``fsdp_config["key"]`` and ``fsdp_config.get("key")``."""
    for node in nodes(tree).of(ast.Subscript, ast.Call):
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and named(node.value) == FSDP:
            key = node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            key = node.args[0] if named(node.func.value) == FSDP else None
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value.removeprefix("fsdp_")


def _given(launch: Launch, folder: Path, name: str) -> Iterator[Setting]:
    """The keys of an argument, by its file, its JSON, or its section in a file of arguments."""
    one = launch.get(f"arg.{name}")
    if one is not None and one.value.endswith(".json") and files.is_there(folder / one.value):
        with suppress(DoctorError):
            for key in files.keys(folder / one.value, one.value):
                if not key.around:
                    yield key.setting(one.value)
    elif one is not None and one.value.startswith("{"):
        with suppress(ValueError, RecursionError):
            for text in json.loads(one.value):
                yield with_fields(one, name=text, value="")
    prefix = f"arg.{name}."
    for setting in launch.settings:
        if setting.name.startswith(prefix) and setting.file:
            key_of = setting.name.removeprefix(prefix).partition(".")[0]
            yield with_fields(setting, name=key_of)
