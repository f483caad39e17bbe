"""Reads accelerate's config file, the user's own one where the command names none."""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting, Unknown
from ddoctor.evidence.source_text import nodes
from ddoctor.launch import files
from ddoctor.launch.launchers import ACCELERATE, installed_source
from ddoctor.launch.nearest import almost

# accelerate/commands/config/config_args.py: names of the default file, in this order.
DEFAULTS = ("default_config.yaml", "default_config.json")
# Keys that older versions wrote, and that newer ones ignore or convert.
ALSO = (
    "fp16",
    "dynamo_backend",
    "command_file",
    "commands",
    "downcast_bf16",
    "tpu_env",
    "tpu_use_cluster",
    "tpu_use_sudo",
)
STRATEGIES = {
    "MULTI_GPU": "ddp",
    "MULTI_CPU": "ddp",
    "MULTI_XPU": "ddp",
    "MULTI_NPU": "ddp",
    "FSDP": "fsdp",
    "DEEPSPEED": "deepspeed",
    "MEGATRON_LM": "megatron",
    "NO": "none",
    "TPU": "tpu",
    "XLA": "tpu",
}
NEAR = 0.8
OF = "accelerate's config file"


@dataclass(frozen=True, kw_only=True)
class Config:
    """What the file says."""

    settings: tuple[Setting, ...] = ()
    files: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()


def read(named: str | None, folder: Path) -> Config:
    """Read the file that the command names, else the user's default one, else none.

    Raises:
        DoctorError: it cannot be read, is no YAML, or is no mapping.
    """
    path = folder / named if named else _default()
    if path is None:
        visible = "the default of accelerate launch without a config file: all visible GPUs"
        return Config(settings=(Setting(name="ranks", value="all", origin=visible),))
    name = named or str(path)
    found = files.settings(path, name)
    if any(not one.name for one in found):
        raise DoctorError(f"{name} has no keys: accelerate's file is a mapping")
    return Config(
        settings=tuple(map(_renamed, found)),
        files=(name,),
        unknown=tuple(_unknown(found)),
    )


def _default() -> Path | None:
    """The default file of the user; accelerate/commands/config/config_args.py."""
    home = os.environ.get("HF_HOME") or Path(
        os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface"
    )
    folder = Path(home, "accelerate").expanduser()
    return next((folder / name for name in DEFAULTS if (folder / name).is_file()), None)


def _renamed(one: Setting) -> Setting:
    section, dot, key = one.name.partition(".")
    name, value = ACCELERATE.means.get(one.name, f"accelerate.{one.name}"), one.value
    if section == "fsdp_config" and dot:
        name = f"fsdp.{key.removeprefix('fsdp_')}"
    elif section == "deepspeed_config" and dot:
        name = ACCELERATE.means.get(key, f"deepspeed.{key}")
    elif one.name == "distributed_type":
        value = STRATEGIES.get(value.upper(), value.lower())
    return Setting(name=name, value=value, file=one.file, line=one.line)


def _unknown(settings: list[Setting]) -> Iterator[Unknown]:
    known = _keys()
    if not known:
        return
    for one in settings:
        key, _, inner = one.name.partition(".")
        if key not in known:
            nearest = difflib.get_close_matches(key, known, 1, NEAR)
            yield Unknown(
                setting=Setting(name=key, value=one.value, file=one.file, line=one.line),
                of=OF,
                nearest=next(iter(nearest), ""),
            )
        elif near := _meant(key, inner):
            yield Unknown(setting=one, of=OF, nearest=near, ignored=True)


def _meant(section: str, key: str) -> str:
    """The option that a key of a section almost names; empty: it names one, or none.

    Each key sets an option of `accelerate launch` (commands/launch.py, _validate_launch_command),
    in some sections without the beginning of its name.
    """
    known = ACCELERATE.options.by_name
    whole = f"{section.removesuffix('config')}{key}"
    if not section.endswith("_config") or not key or "." in key or {key, whole} & known.keys():
        return ""
    return almost(key, known) or almost(whole, known)


@cache
def _keys() -> tuple[str, ...]:
    """The keys of the installed version; empty: it is not installed."""
    tree = installed_source("accelerate", "commands/config/config_args.py")
    if tree is None:
        return ()
    return (
        *ALSO,
        *(
            node.target.id
            for node in nodes(tree).of(ast.AnnAssign)
            if isinstance(node.target, ast.Name)
        ),
    )
