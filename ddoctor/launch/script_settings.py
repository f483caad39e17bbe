"""What a script is given: its arguments, its config file, and its own defaults."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from msgspec.structs import replace as with_fields

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting, Unknown
from ddoctor.evidence.source_text import nodes
from ddoctor.launch import (
    accelerator_calls,
    dataset_length,
    files,
    hydra_config,
    known_arguments,
    lerobot_dataset,
    lightning_calls,
    lightning_cli,
    made_for,
    modules,
    openmmlab_config,
    optimizer_calls,
    ray_calls,
    trainer_defaults,
    trainer_fsdp,
)
from ddoctor.launch.launchers import installed_source
from ddoctor.launch.option_source import named, options_of, plain
from ddoctor.launch.words import Word

CONFIGS = (".yaml", ".yml", ".json")
# Options of transformers, TRL, LeRobot, nanoGPT and others that name a file with more options.
NAMES_CONFIG = ("config", "config_file", "config_path", "cfg", "args_file")
# transformers' `--deepspeed`, DeepSpeed's own `--deepspeed_config`, and those of scripts.
NAMES_DEEPSPEED = ("deepspeed", "deepspeed_config", "ds_config", "ds_config_path", "ds_file")
OF_DEEPSPEED = dict.fromkeys(NAMES_DEEPSPEED, "deepspeed_config")
FILE_OF_DEEPSPEED = re.compile(r"(?:\bds|deepspeed)[^/\s]{0,60}\.json$")
PAIR = re.compile(r"\+{0,2}(?P<key>[A-Za-z_][\w.]*)=(?P<value>.*)", re.DOTALL)
NUMBER = re.compile(r"-\.?\d")
# Classes whose arguments are settings of the training.
OF_TRAINING = re.compile(r"\w*TrainingArguments|\w*Config|Accelerator|Trainer|Fabric")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A class of a library whose fields are the arguments of a training."""

    name: str
    package: str
    source: str
    """Its file, within the package."""
    programs: tuple[str, ...]
    """The library's own scripts and modules."""
    fields: tuple[str, ...]
    """Those whose defaults count."""


CLASSES = (
    Arguments(
        name="lerobot-train",
        package="lerobot",
        source="configs/train.py",
        programs=("lerobot-train", "lerobot.scripts.lerobot_train", "lerobot.scripts.train"),
        fields=("batch_size", "steps", "save_freq", "num_workers"),
    ),
)


@dataclass(kw_only=True)
class Told:
    """What is known of it."""

    settings: list[Setting] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)


def read(
    script: Word,
    arguments: Sequence[Word],
    folder: Path,
    *,
    is_module: bool,
    appended: Mapping[str, Setting],
) -> Told:
    """Read the arguments of a script, the files that they name, and the script's own defaults.

    ``appended``: what the launcher adds to the arguments.
    """
    told = Told()
    by_word = [*_arguments(arguments)]
    given = [one for _, one in by_word]
    told.settings += reversed(given)
    for one in given:
        key = _key(one)
        # Whatever names a file of YAML: `--recipe sft.yaml`. One of JSON may hold data.
        takes = key in NAMES_CONFIG or key == "" or one.value.endswith(CONFIGS[:2])
        if takes and key not in NAMES_DEEPSPEED and _is_config(one, folder):
            _add(told, one, folder, "arg.")
        elif key == "" and one.value.endswith(".py") and files.is_there(folder / one.value):
            told.settings += openmmlab_config.read(folder / one.value, one.value, given)
    # A file of options may name that of DeepSpeed.
    of_deepspeed = (one for one in told.settings if _key(one) in NAMES_DEEPSPEED)
    if named := next((one for one in of_deepspeed if _is_config(one, folder)), None):
        _add(told, named, folder, "deepspeed.")
    for path in paths(script.text, folder, is_module=is_module):
        tree = modules.parsed(path)
        if tree is not None:
            name = script.text if not is_module else path.name
            for one in _files_of(tree, name, given):
                # What it opens may be data, and too much of it.
                with suppress(DoctorError):
                    prefix = "deepspeed." if one.name == "arg.deepspeed_config" else "arg."
                    told.settings += files.settings(folder / one.value, one.value, prefix)
                    told.files.append(one.value)
            told.settings += _written(tree, name)
            known, hidden = _unpacked(tree, told.settings)
            told.settings += known
            told.settings += accelerator_calls.written(tree, name)
            told.settings += optimizer_calls.rates(tree, name)
            told.settings += lightning_calls.started(tree, name, told.settings)
            by_cli = lightning_cli.read(tree, name, by_word, folder)
            told.settings += by_cli.settings
            for one in by_cli.files:
                if one.value not in told.files:
                    _add(told, one, folder, "arg.")
            told.settings += ray_calls.started(tree, name, told.settings)
            told.settings += _said(path, tree, name)
            told.settings += dataset_length.written(tree, name)
            found = [modules.Module(tree, path, (folder, path.parent))]
            for other, where in _imported(tree, path, folder, is_module=is_module):
                found.append(modules.Module(other, path.parent / where, (folder, path.parent)))
                told.settings += _written(other, where)
                told.settings += accelerator_calls.written(other, where)
                told.settings += _said(path.parent / where, other, where)
            defaults = trainer_defaults.read(found)
            # A dictionary that the source does not show may set any of them.
            told.settings += [one for one in defaults if not hidden or one.name == "trainer"]
            options = {word: one for word, one in by_word if word.startswith("-")}
            told.unknown += known_arguments.refused(tree, {**options, **appended}, name)
            if (composed := hydra_config.read(tree, path, by_word, folder)) is not None:
                told.settings += composed.settings
                told.files += composed.files
                told.unknown += composed.unknown
            break
    for library in CLASSES:
        if PurePath(script.text).name in library.programs:
            told.settings += _defaults(library)
    told.settings += trainer_defaults.of_program(script.text, [one.text for one in arguments])
    told.settings += trainer_fsdp.read(told.settings, folder)
    told.settings += lerobot_dataset.samples(told.settings, folder)
    for file in dict.fromkeys(told.files):
        with suppress(DoctorError):
            told.settings += made_for.of_file(files.text(folder / file, file), file)
    told.settings += made_for.of_readme(folder)
    return told


def _key(setting: Setting) -> str:
    """The name of an argument without the sections of its file."""
    return setting.name.removeprefix("arg.").rpartition(".")[2]


def _is_config(setting: Setting, folder: Path) -> bool:
    return setting.value.endswith(CONFIGS) and files.is_there(folder / setting.value)


def _add(told: Told, names: Setting, folder: Path, prefix: str) -> None:
    """Read the file that an argument names, or keep why it cannot be read."""
    try:
        told.settings += files.settings(folder / names.value, names.value, prefix)
    except DoctorError as error:
        told.settings.append(with_fields(names, name="unreadable", value=str(error)))
    else:
        told.files.append(names.value)


def _arguments(words: Sequence[Word]) -> Iterator[tuple[str, Setting]]:
    """The arguments by name, with the word that names each; a positional one has ``arg.``.

    Of ``name=value``, that is the whole word."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.text.startswith("--") or re.match(r"-[A-Za-z]", word.text):
            name, given, value = word.text.partition("=")
            if not given and at < len(words) and _is_value(words[at].text):
                given, value = " ", words[at].text
                at += 1
            yield name, word.setting(f"arg.{plain(name)}", value if given else "true")
        elif match := PAIR.fullmatch(word.text):
            yield word.text, word.setting(f"arg.{match['key']}", match["value"])
        else:
            yield "", word.setting("arg.", word.text)


def _is_value(text: str) -> bool:
    return not text.startswith("-") or NUMBER.match(text) is not None


def paths(script: str, folder: Path, *, is_module: bool) -> Iterator[Path]:
    """The files that a script or a module may be, from the folder of the command."""
    if not is_module:
        yield folder / script
        if os.path.isabs(script):
            # In an image, the script may be in another folder than here.
            parts = PurePath(script).parts[1:]
            yield from (folder.joinpath(*parts[at:]) for at in range(1, len(parts)))
        return
    path = Path(*script.split("."))
    if not path.name:
        return
    yield from (
        folder / base / end
        for base in ("", "src")
        for end in (path.with_suffix(".py"), path / "__main__.py")
    )


def is_absent_module(name: str, folder: Path) -> bool:
    """Whether its package is in the folder of the command, and has no such module."""
    *packages, last = name.split(".")
    within = [folder.joinpath(*packages[: at + 1]) for at in range(len(packages))]
    if not within or not all(files.is_there(one / "__init__.py") for one in within):
        return False
    # Also compiled ones.
    return not any(within[-1].glob(f"{last}*"))


def _imported(
    tree: ast.Module, path: Path, folder: Path, *, is_module: bool
) -> Iterator[tuple[ast.Module, str]]:
    """The modules of the user's own that a script imports, where options may be written."""
    base = folder if is_module else path.parent
    known: set[Path] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            within = [node.module] if node.module else []
            imported = [*within, *(".".join((*within, one.name)) for one in node.names)]
            root = path.parent if node.level else base
        elif isinstance(node, ast.Import):
            imported, root = [one.name for one in node.names], base
        else:
            continue
        for parts in (one.split(".") for one in imported):
            file = root.joinpath(*parts).with_suffix(".py")
            if file in known or not files.is_there(file):
                continue
            known.add(file)
            if (other := modules.parsed(file)) is not None:
                yield other, f"{'/'.join(parts)}.py"


def _files_of(tree: ast.Module, name: str, given: Sequence[Setting]) -> Iterator[Setting]:
    """Files of options that the script itself names, in the settings' values.

    Those of ``OmegaConf.load`` and ``deepspeed.initialize``, a YAML file or one of DeepSpeed that
    it opens, and the default of its ``--config``.
    """
    for node in nodes(tree).of(ast.Call):
        for word in node.keywords if named(node.func) == "initialize" else ():
            path = getattr(word.value, "value", None)
            if word.arg == "config" and isinstance(path, str):
                yield Setting(name="arg.deepspeed_config", value=path, file=name, line=node.lineno)
        if len(node.args) != 1:
            continue
        path = getattr(node.args[0], "value", None)
        of = named(getattr(node.func, "value", None))
        loads = (of, named(node.func)) == ("OmegaConf", "load")
        opens = named(node.func) == "open" and str(path).endswith(CONFIGS[:2])
        if isinstance(path, str) and (loads or opens):
            yield Setting(name="arg.config", value=path, file=name, line=node.lineno)
        elif named(node.func) == "open" and FILE_OF_DEEPSPEED.search(str(path)):
            yield Setting(name="arg.deepspeed_config", value=str(path), file=name, line=node.lineno)
    keys = {one.name.removeprefix("arg.") for one in given}
    for option in options_of(tree).rows:
        key, default = option.key, option.default or ""
        if key not in keys and default.endswith(CONFIGS):
            names = {**dict.fromkeys(NAMES_CONFIG, "config"), **OF_DEEPSPEED}
            if key in names:
                yield Setting(name=f"arg.{names[key]}", value=default, file=name, line=option.line)


def _written(tree: ast.Module, name: str) -> Iterator[Setting]:
    """Values that the script itself writes, then the defaults of its options."""
    for node in nodes(tree).of(ast.Call):
        if OF_TRAINING.fullmatch(named(node.func)):
            for word in node.keywords:
                if word.arg and isinstance(word.value, ast.Constant):
                    yield Setting(
                        name=f"arg.{word.arg}",
                        value=str(word.value.value),
                        file=name,
                        line=word.value.lineno,
                    )
    for option in options_of(tree).rows:
        if option.default is not None:
            yield Setting(
                name=f"arg.{option.key}", value=option.default, file=name, line=option.line
            )


def _unpacked(tree: ast.Module, given: Sequence[Setting]) -> tuple[list[Setting], bool]:
    """The settings of a file's section that a class of arguments gets as ``**cfg["training"]``.

    Also whether it gets one that no file has.
    """
    found, hidden = list[Setting](), False
    for node in nodes(tree).of(ast.Call):
        for word in node.keywords if trainer_defaults.NAMES.fullmatch(named(node.func)) else ():
            if word.arg is None and OF_TRAINING.fullmatch(named(node.func)):
                value = word.value.slice if isinstance(word.value, ast.Subscript) else word.value
                section = f"arg.{named(value)}."
                rows = [one for one in given if one.name.startswith(section)]
                hidden = hidden or not rows
                found += [
                    with_fields(one, name=f"arg.{one.name.removeprefix(section)}") for one in rows
                ]
    return found, hidden


def _said(path: Path, tree: ast.Module, name: str) -> Iterator[Setting]:
    """What the texts of a source say on its rate."""
    yield from made_for.of_source(tree, options_of(tree), name)
    with suppress(DoctorError):
        yield from made_for.of_file(files.text(path, name), name)


def _defaults(arguments: Arguments) -> Iterator[Setting]:
    """The defaults of the installed version."""
    tree = installed_source(arguments.package, arguments.source)
    for node in nodes(tree).of(ast.AnnAssign) if tree is not None else ():
        if isinstance(node.target, ast.Name) and node.target.id in arguments.fields:
            value = node.value
            if isinstance(value, ast.Call):
                value = next((one.value for one in value.keywords if one.arg == "default"), None)
            if isinstance(value, ast.Constant):
                yield Setting(
                    name=f"arg.{node.target.id}",
                    value=str(value.value),
                    origin=f"the default of {arguments.name}",
                )
