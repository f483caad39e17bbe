"""Keys of DeepSpeed's JSON that the installed DeepSpeed refuses or ignores.

Sources: deepspeed/runtime/config_utils.py: its models refuse what they have no field for;
deepspeed/runtime/config.py asks for the other keys one by one; deepspeed/runtime/lr_schedules.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace as with_fields

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Launch, Unknown
from ddoctor.evidence.source_text import nodes
from ddoctor.launch import files, modules
from ddoctor.launch.nearest import almost, nearest

OF = "DeepSpeed's file"
OFFLOAD = "runtime/zero/offload_config.py"
PRECISION = "runtime/precision_config.py"
MODELS = {
    ("zero_optimization",): ("runtime/zero/config.py", "DeepSpeedZeroConfig"),
    ("zero_optimization", "offload_param"): (OFFLOAD, "DeepSpeedZeroOffloadParamConfig"),
    ("zero_optimization", "offload_optimizer"): (OFFLOAD, "DeepSpeedZeroOffloadOptimizerConfig"),
    ("bf16",): (PRECISION, "DeepSpeedBF16Config"),
    ("fp16",): (PRECISION, "DeepSpeedFP16Config"),
}
KINDS = ("optimizer", "scheduler")
OF_KINDS = ("type", "params", "legacy_fusion")
LOOSE = (*KINDS, "activation_checkpointing", "flops_profiler", "aio", "bf16", "fp16")
"""Sections that DeepSpeed reads key by key, bf16 and fp16 in versions without their models."""
SOURCES = re.compile(r"constants\.py|\w*config\w*\.py|engine\.py")
KEY = re.compile(r"[a-z][a-z0-9_]{2,60}")


def unknown(launch: Launch, folder: Path, script: str) -> Iterator[Unknown]:
    """Yield them for the files of a launch; ``script``: its source, which may read its own keys."""
    if modules.installed("deepspeed", "runtime/config.py") is None:
        return
    of_file = [one for one in launch.settings if one.name.startswith("deepspeed.") and one.file]
    other = {one.file for one in launch.settings if one.name.startswith("accelerate.")}
    written = frozenset[str]()
    for name in dict.fromkeys(one.file for one in of_file):
        keys: list[files.Key] = []
        if name.endswith(".json") and name not in other and files.is_there(folder / name):
            with suppress(DoctorError):
                keys = files.keys(folder / name, name)
        written = written or (_written() if keys else written)
        scheduler = launch.get("deepspeed.scheduler.type")
        kind = scheduler.value if scheduler is not None else ""
        for key in keys:
            read_by_script = re.search(rf"""["']{re.escape(key.name)}["']""", script)
            if read_by_script is None:
                yield from _judged(key, name, kind, written)


def _judged(
    key: files.Key, file: str, scheduler: str, written: frozenset[str]
) -> Iterator[Unknown]:
    setting = with_fields(key.setting(file), name=".".join((*key.around, key.name)))
    known = _of_model(key.around)
    if key.around == ("scheduler", "params"):
        known = _parameters(scheduler)
    if known is not None:
        if key.name not in known:
            yield Unknown(setting=setting, of=OF, nearest=nearest(key.name, known))
        return
    if key.around in ((KINDS[0],), (KINDS[1],)):
        near = almost(key.name, OF_KINDS) if key.name not in OF_KINDS else ""
    elif not key.around or (key.around[0] in LOOSE and len(key.around) == 1):
        near = "" if key.name in written else almost(key.name, written)
    else:
        near = ""
    if near:
        yield Unknown(setting=setting, of=OF, nearest=near, ignored=True)


def _of_model(section: tuple[str, ...]) -> Sequence[str] | None:
    """The fields of a section's model with their aliases; None: it has none that is known here."""
    if section not in MODELS:
        return None
    source, name = MODELS[section]
    module = modules.installed("deepspeed", source)
    base = modules.installed("deepspeed", "runtime/config_utils.py")
    if module is None or base is None or "forbid" not in files.text(base.path, source):
        return None
    found = _fields(name, module)
    return None if found is None else [*found, *filter(None, map(_alias, found.values()))]


def _fields(name: str, module: modules.Module) -> Mapping[str, modules.Field] | None:
    """The fields of a model without those of pydantic, which need not be installed."""
    node, _ = modules.defined(name, module) or (None, None)
    if node is None or [ast.unparse(base) for base in node.bases] != ["DeepSpeedConfigModel"]:
        return None
    return {
        one.target.id: modules.Field(one, module)
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }


def _alias(field: modules.Field) -> str:
    value = getattr(modules.keyword(field, "alias"), "value", "")
    return value if isinstance(value, str) else ""


def _parameters(kind: str) -> Sequence[str] | None:
    """What a scheduler of DeepSpeed takes; None: there is no such class, or it takes anything."""
    module = modules.installed("deepspeed", "runtime/lr_schedules.py")
    node, _ = (modules.defined(kind, module) if module is not None else None) or (None, None)
    for one in node.body if node is not None else ():
        if isinstance(one, ast.FunctionDef) and one.name == "__init__" and not one.args.kwarg:
            # DeepSpeed itself gives the optimizer.
            return [word.arg for word in one.args.args[2:]]
    return None


def _written() -> frozenset[str]:
    """All texts of DeepSpeed's configuration that may be a key."""
    known = set()
    config = modules.installed("deepspeed", "runtime/config.py")
    root = config.path.parents[1] if config is not None else Path()
    for path in sorted(root.rglob("*.py")) if config is not None else ():
        tree = modules.parsed(path) if SOURCES.fullmatch(path.name) else None
        for node in nodes(tree).of(ast.Constant) if tree is not None else ():
            if isinstance(node.value, str) and KEY.fullmatch(node.value):
                known.add(node.value)
    return frozenset(known)
