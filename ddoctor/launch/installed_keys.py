"""What the installed version of a library does not know, of a launch's arguments and files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath

import msgspec

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Launch, Setting, Unknown
from ddoctor.launch import (
    dataclass_parsers,
    deepspeed_keys,
    files,
    lerobot_options,
    trainer_keys,
)
from ddoctor.launch.option_source import plain
from ddoctor.launch.programs import PYTHON

OF_LEROBOT = ("lerobot-train", "lerobot.scripts.lerobot_train", "lerobot.scripts.train")
OF_PYTHON = ("torchrun", "accelerate", "deepspeed", "trl", "lerobot-train")
ACTIVATES = re.compile(
    r"(?:^|[;&])\s*(?:(?:source|conda|mamba|micromamba)\s+activate\s+(?P<name>\S+)"
    r"|(?:source|\.)\s+(?P<path>\S+)/bin/activate\b)",
    re.MULTILINE,
)
LIBRARIES = ("transformers", "trl", "deepspeed", "lerobot")


def judged(launch: Launch, script: Path | None, folder: Path) -> Launch:
    """The launch with them.

    Where it may run with another version than the installed, only what looks misspelt stays, and
    what the script's own parser refuses.
    """
    elsewhere = launch.get("elsewhere", "srun.container_image") is not None
    pinned = any(_is_other(launch, one) for one in LIBRARIES)
    if elsewhere or pinned or _has_other_python(launch, folder):
        sure = (one for one in launch.unknown if one.nearest or one.of == launch.script)
        return msgspec.structs.replace(launch, unknown=tuple(sure))
    return msgspec.structs.replace(
        launch, unknown=(*launch.unknown, *_unknown(launch, script, folder))
    )


def _is_other(launch: Launch, package: str) -> bool:
    """Whether the project pins another version."""
    pin, here = launch.get(f"pin.{package}"), ""
    with suppress(PackageNotFoundError):
        here = version(package)
    return pin is not None and pin.value != here


def _has_other_python(launch: Launch, folder: Path) -> bool:
    """Whether the command or its script names a Python, or an environment, that is not this one."""
    here = Path(sys.prefix)
    paths = (Path(one) for one in launch.command if os.path.isabs(one))
    named = [one for one in paths if one.name in OF_PYTHON or PYTHON.fullmatch(one.name)]
    by_uv = launch.command[:1] == ("uv",) and here != folder / ".venv"
    text = ""
    with suppress(DoctorError):
        text = files.text(folder / launch.file, launch.file) if launch.file else ""
    activated = (PurePath(one["name"] or one["path"]).name for one in ACTIVATES.finditer(text))
    others = any(one.parent != here / "bin" for one in named)
    return by_uv or others or any(one != here.name for one in activated)


def _unknown(launch: Launch, script: Path | None, folder: Path) -> Iterator[Unknown]:
    options = _options(launch)
    program = PurePath(launch.script).name
    if program in OF_LEROBOT:
        yield from lerobot_options.refused(options)
    elif program == "trl":
        yield from dataclass_parsers.refused_by_trl(launch, folder, options)
    elif script is not None:
        roots = (folder, script.parent)
        yield from dataclass_parsers.refused(launch, script, roots, options)
    source = ""
    if script is not None:
        with suppress(DoctorError):
            source = files.text(script, launch.script)
    if program == "trl" or "TrainingArguments" in source:
        yield from trainer_keys.unknown(launch, folder)
    yield from deepspeed_keys.unknown(launch, folder, source)


def _options(launch: Launch) -> Mapping[str, Setting]:
    """The long options of the script as they are written, each with its place."""
    words = [word.partition("=")[0] for word in launch.arguments if word.startswith("--")]
    found = {word: launch.get(f"arg.{plain(word)}") for word in words if "$" not in word}
    return {
        word: msgspec.structs.replace(one, name=word)
        for word, one in found.items()
        if one is not None and len(word) > len("--")
    }
