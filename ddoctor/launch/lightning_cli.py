"""What LightningCLI gives the Trainer: the files of ``--config`` and options on the line.

Source: lightning/pytorch/cli.py; of several files and options, the last counts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace as with_fields

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.source_text import nodes
from ddoctor.launch import files
from ddoctor.launch.lightning_calls import MEANS, OTHER_DEVICES, PACKAGES, refuses
from ddoctor.launch.option_source import named
from ddoctor.launch.yaml_nodes import get, line, rows, text

CLI = "LightningCLI"
FILES = ("-c", "--config")
SUBCOMMANDS = ("fit", "validate", "test", "predict")
OF_LINE = re.compile(r"--trainer\.(?P<key>\w+)")
KEYS = (*MEANS, "accelerator", "plugins")


@dataclass(kw_only=True)
class Given:
    """What the Trainer gets, and the files that say so."""

    settings: Sequence[Setting] = ()
    files: list[Setting] = field(default_factory=list)


def read(
    tree: ast.Module, name: str, by_word: Sequence[tuple[str, Setting]], folder: Path
) -> Given:
    """Ranks, hosts, precision and strategy, as ``lightning.hosts``; nothing: it starts no CLI.

    ``by_word``: the arguments of the line with the words that name them.
    """
    made = _calls(tree)
    given = Given()
    if len(made) != 1:
        return given
    found = {one.name: one for one in _defaults(made[0], name)}
    subcommand = next((one.value for word, one in by_word if not word), "")
    for word, one in by_word:
        if word in FILES and files.is_there(folder / one.value):
            with suppress(DoctorError):
                for document in files.documents(folder / one.value, one.value):
                    found |= {each.name: each for each in _of_file(document, subcommand, one.value)}
                given.files.append(one)
        elif (match := OF_LINE.fullmatch(word)) and match["key"] in KEYS:
            found[match["key"]] = with_fields(one, name=match["key"], value=_number(one.value))
    given.settings = [*_told(found, made[0], name)]
    return given


def _calls(tree: ast.Module) -> Sequence[ast.Call]:
    """The calls of LightningCLI, and of the script's own classes of it."""
    every = nodes(tree)
    if not PACKAGES & every.packages:
        return ()
    names = {CLI}
    for node in every.of(ast.ClassDef):
        if names & {named(one) for one in node.bases}:
            names.add(node.name)
    return [one for one in every.of(ast.Call) if named(one.func) in names]


def _defaults(call: ast.Call, name: str) -> Iterator[Setting]:
    """The constants of ``trainer_defaults={"devices": 4}``."""
    given = next((one.value for one in call.keywords if one.arg == "trainer_defaults"), None)
    if not isinstance(given, ast.Dict):
        return
    for key, value in zip(given.keys, given.values, strict=True):
        if named(key) in KEYS and isinstance(value, ast.Constant):
            told = _number(str(value.value))
            yield Setting(name=named(key), value=told, file=name, line=value.lineno)


def _of_file(document: Any, subcommand: str, name: str) -> Iterator[Setting]:
    """The keys of the Trainer, also below the subcommand of the line."""
    inner = get(document, subcommand) if subcommand in SUBCOMMANDS else None
    for part in (document, inner):
        trainer = get(part, "trainer")
        for key in KEYS:
            if (value := get(trainer, key)) is not None:
                told = str(len(rows(value))) if rows(value) else _number(text(value))
                told = told or text(get(value, "class_path"))
                yield Setting(name=key, value=told, file=name, line=line(value))


def _number(value: str) -> str:
    """The number of devices in ``0,1``, and ``all`` of ``-1``; other values stay."""
    if re.fullmatch(r"\[?\d+(?: *, *\d+)+\]?", value):
        return str(value.count(",") + 1)
    return "all" if value in ("-1", "auto") else value


def _told(found: Mapping[str, Setting], call: ast.Call, name: str) -> Iterator[Setting]:
    accelerator = found.get("accelerator")
    other = accelerator is not None and accelerator.value in OTHER_DEVICES
    if "devices" not in found or "plugins" in found or other:
        return
    for key, meaning in MEANS.items():
        if key in found:
            # Such as lightning.pytorch.strategies.DDPStrategy.
            value = found[key].value.rpartition(".")[2].removesuffix("Strategy")
            value = value.lower() if key == "strategy" else found[key].value
            yield with_fields(found[key], name=f"lightning.{meaning}", value=value)
    yield Setting(name="lightning.cli", value=CLI, file=name, line=call.lineno)
    if refuses():
        yield Setting(name="refuses-other-ranks", value="true", origin="the installed Lightning")
