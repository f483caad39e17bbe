"""The defaults of the arguments with which transformers' Trainer trains a script's model.

They are those of ``TrainingArguments``, or of a class of the script, or of TRL, that derives from
it and may have other ones.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from ddoctor.evidence.launch import Setting
from ddoctor.evidence.source_text import nodes
from ddoctor.launch import modules
from ddoctor.launch.modules import Module
from ddoctor.launch.option_source import named

BASE = "TrainingArguments"
NAMES = re.compile(r"\w*(?:Arguments|Args|Config)")
OF_LIBRARIES = re.compile(
    r"(?:Seq2Seq)?TrainingArguments|(?:SFT|DPO|GRPO|KTO|ORPO|CPO|RLOO|PPO|Reward|BCO|XPO)Config"
)
FIELDS = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate"),
    *("num_train_epochs", "max_steps", "warmup_steps", "optim", "save_steps"),
    *("lr_scheduler_type", "dataloader_num_workers", "logging_steps"),
)
"""Those whose defaults count."""


def of_program(script: str, arguments: Sequence[str]) -> Iterator[Setting]:
    """Those of `trl sft` and its like."""
    command = arguments[0] if arguments and PurePath(script).name == "trl" else ""
    found = modules.installed("trl", f"scripts/{command}.py") if command.isidentifier() else None
    yield from read([found] if found is not None else [])


def read(found: Sequence[Module]) -> Iterator[Setting]:
    """Those on which all such classes of these modules agree, and ``trainer``, their name."""
    chains = {
        (chain[0][1].path, name): chain
        for module in found
        for name in _names(module.tree)
        if (chain := modules.chain(name, module)) and chain[-1][0].name == BASE
    }
    bases = {(module.path, node.name) for one in chains.values() for node, module in one[1:]}
    last = {
        key: chain[0] for key, chain in chains.items() if (key[0], chain[0][0].name) not in bases
    }
    if not last:
        # Of a library that is not installed, the defaults are not known.
        names = (name for module in found for name in _of_libraries(module.tree))
        for name in [*names][:1]:
            yield Setting(name="trainer", value=name, origin="the script")
        return
    name = next(iter(last))[1]
    yield Setting(name="trainer", value=name, origin="the script")
    every = [_defaults(node.name, module) for node, module in last.values()]
    for key, value in every[0].items():
        if all(one.get(key) == value for one in every):
            yield Setting(name=f"arg.{key}", value=value, origin=f"the default of {name}")


def _names(tree: ast.Module) -> Iterator[str]:
    """The classes of arguments that a module imports, and those that it derives from such."""
    for node in nodes(tree).of(ast.ImportFrom, ast.ClassDef):
        if isinstance(node, ast.ImportFrom):
            names = [one.asname or one.name for one in node.names]
            yield from filter(NAMES.fullmatch, names)
        elif any(NAMES.fullmatch(named(base)) for base in node.bases):
            yield node.name


def _of_libraries(tree: ast.Module) -> Iterator[str]:
    """The classes of arguments that come from TRL and transformers by their names."""
    for node in nodes(tree).of(ast.ImportFrom):
        if node.module in ("trl", "transformers"):
            yield from (one.name for one in node.names if OF_LIBRARIES.fullmatch(one.name))


def _defaults(name: str, module: Module) -> Mapping[str, str]:
    found = modules.fields(name, module) or {}
    values = {key: found[key].node.value for key in FIELDS if key in found}
    for key, value in values.items():
        if isinstance(value, ast.Call):
            values[key] = modules.keyword(found[key], "default")
    return {
        key: str(value.value) for key, value in values.items() if isinstance(value, ast.Constant)
    }
