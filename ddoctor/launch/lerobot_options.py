"""Options of LeRobot's training that the installed version does not have.

Sources: lerobot/configs/train.py, TrainPipelineConfig; lerobot/configs/parser.py; draccus, whose
parser takes no beginnings of names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from ddoctor.evidence.launch import Setting, Unknown
from ddoctor.launch import modules
from ddoctor.launch.modules import Module
from ddoctor.launch.nearest import nearest

ALWAYS = ("config_path", "help")
OF_CHOICES = ("type", "path")
"""Options that choose the class of a section."""
PLUGINS = "discover_packages_path"
CLASS = re.compile(r"[A-Z]\w*Config\b")


def refused(options: Mapping[str, Setting]) -> Iterator[Unknown]:
    """Yield them, by the words that give them."""
    module = modules.installed("lerobot", "configs/train.py")
    if module is None or any(PLUGINS in word for word in options):
        return
    for word, setting in options.items():
        meant = _meant(word[2:].split("."), "TrainPipelineConfig", module, options, ALWAYS)
        if meant is not None:
            yield Unknown(setting=setting, of="lerobot-train", nearest=meant and f"--{meant}")


def _meant(
    parts: list[str],
    of: str,
    module: Module,
    options: Mapping[str, Setting],
    also: tuple[str, ...],
    before: str = "",
) -> str | None:
    """None: it is known, or cannot be judged. Else the name that is near; empty: there is none."""
    fields = modules.fields(of, module)
    if fields is None:
        return None
    known = [name for name, one in fields.items() if modules.is_given(one)]
    first, rest = parts[0], parts[1:]
    if first not in (*known, *also):
        near = nearest(first, known)
        return near and before + ".".join((near, *rest))
    if not rest or first not in fields:
        return None
    section = f"{before}{first}"
    within = _chosen(section, options) if first == "policy" else _plain(fields[first])
    if within is None:
        return None
    return _meant(rest, *within, options, OF_CHOICES if first == "policy" else (), f"{section}.")


def _plain(field: modules.Field) -> tuple[str, Module] | None:
    """The dataclass of a section; None: it is none, or another option chooses it."""
    names = CLASS.findall(ast.unparse(field.node.annotation))
    found = modules.defined(names[0], field.module) if names else None
    chosen = found is None or any("ChoiceRegistry" in ast.unparse(one) for one in found[0].bases)
    return None if chosen else (names[0], field.module)


def _chosen(section: str, options: Mapping[str, Setting]) -> tuple[str, Module] | None:
    """The class of the policy that `--policy.type` names; None: another option may choose it."""
    kind = options.get(f"--{section}.type")
    name = kind.value if kind is not None else ""
    source = f"policies/{name}/configuration_{name}.py"
    module = modules.installed("lerobot", source) if name.isidentifier() else None
    if module is None:
        return None
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef):
            decorators = map(ast.unparse, node.decorator_list)
            if any(one.endswith(f".register_subclass('{name}')") for one in decorators):
                return node.name, module
    return None
