"""Arguments that no dataclass of a script has, which transformers' or TRL's parser refuses.

Sources: transformers/hf_argparser.py; trl/scripts/utils.py, TrlParser.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Launch, Setting, Unknown
from ddoctor.evidence.source_text import nodes
from ddoctor.launch import files, modules
from ddoctor.launch.launchers import ACCELERATE
from ddoctor.launch.modules import Module
from ddoctor.launch.nearest import nearest
from ddoctor.launch.option_source import named, options_of, plain

PARSERS = ("HfArgumentParser", "TrlParser")
LIBRARIES = frozenset({"transformers", "trl"})
OF_LINE = ("parse_args_into_dataclasses", "parse_args_and_config")
OF_FILE = {"parse_json_file": (".json",), "parse_yaml_file": (".yaml", ".yml")}
WITHOUT_ARGUMENTS = ("add_argument", "set_defaults", "print_help", "error")
# What the methods are given where they refuse what they do not know.
STRICT = {
    "return_remaining_strings": False,
    "fail_with_unknown_args": True,
    "allow_extra_keys": False,
    "look_for_args_file": True,
}
FILE_WORDS = ("json_file", "yaml_file")
OF_TRL = ("config", "env")
"""An option and a section that TRL takes for itself."""


@dataclass(frozen=True)
class _Parser:
    """The only parser of a script, with the calls of its methods."""

    calls: Sequence[ast.Call]
    classes: Sequence[str]
    is_of_trl: bool

    def of(self, *methods: str) -> list[ast.Call]:
        return [one for one in self.calls if named(one.func) in methods]


def refused(
    launch: Launch, script: Path, roots: Sequence[Path], options: Mapping[str, Setting]
) -> Iterator[Unknown]:
    """Yield what the parser of a script refuses on its command line and in its files."""
    module = modules.module(script, *roots)
    parser = _parser(module.tree) if module is not None else None
    if module is None or parser is None:
        return
    known = _fields(parser.classes, module)
    if known is None:
        return
    added = [name for row in options_of(module.tree).rows for name in row.names]
    lines = parser.of(*OF_LINE)
    config = _whole_file(launch, parser)
    strict = bool(lines) and all(map(_refuses, lines)) and _leaves_arguments(module.tree)
    if strict and not config:
        own = ["--config", "--help"] if parser.is_of_trl else ["--help"]
        yield from _of_line(options, (*_as_options(known), *added, *own), launch.script)
        given = options.get("--config")
        config = given.value if given is not None and parser.is_of_trl else ""
        strict = bool(parser.of("parse_args_and_config"))
    elif config:
        strict = all(map(_refuses, parser.of(*OF_FILE)))
    if strict and config:
        own = [*OF_TRL] if parser.is_of_trl else []
        yield from _of_file(config, roots[0], {*known, *map(plain, (*added, *own))}, launch.script)


def refused_by_trl(
    launch: Launch, folder: Path, options: Mapping[str, Setting]
) -> Iterator[Unknown]:
    """Yield what `trl sft` and its like pass on to accelerate, which knows it no more.

    Source: trl/cli/commands/training.py.
    """
    command = launch.arguments[0] if launch.arguments else ""
    module = modules.installed("trl", f"scripts/{command}.py") if command.isidentifier() else None
    if module is None or not ACCELERATE.is_known:
        return
    tuples = [
        node.value
        for node in nodes(module.tree).of(ast.Assign)
        if "dataclass_types" in map(named, node.targets)
    ]
    known = _fields(_classes(tuples[0]), module) if len(tuples) == 1 else None
    if known is None:
        return
    of_accelerate = {name for row in ACCELERATE.options.rows for name in row.names}
    own = ("--config", "--accelerate_config", "--help", *of_accelerate)
    program = f"trl {command}"
    yield from _of_line(options, (*_as_options(known), *own), program)
    if (given := options.get("--config")) is not None:
        keys = {*known, *map(plain, own), *OF_TRL}
        yield from _of_file(given.value, folder, keys, program)


def _of_line(options: Mapping[str, Setting], names: Sequence[str], of: str) -> Iterator[Unknown]:
    for word, setting in options.items():
        # argparse takes the beginning of a name for the name, if it is not that of several.
        begin = {plain(name) for name in names if name.startswith(word)}
        if word not in names and len(begin) != 1:
            yield Unknown(setting=setting, of=of, nearest=nearest(word, names))


def _of_file(name: str, folder: Path, known: set[str], of: str) -> Iterator[Unknown]:
    keys: list[files.Key] = []
    if files.is_there(folder / name):
        with suppress(DoctorError):
            keys = files.keys(folder / name, name)
    for key in keys:
        if not key.around and key.name not in known:
            yield Unknown(setting=key.setting(name), of=of, nearest=nearest(key.name, known))


def _whole_file(launch: Launch, parser: _Parser) -> str:
    """The file that has all arguments: the script's only argument, or one that it names itself."""
    for call in parser.of(*OF_FILE):
        words = [*call.args, *(one.value for one in call.keywords if one.arg in FILE_WORDS)]
        path = getattr(words[0], "value", None) if words else None
        if isinstance(path, str) and not parser.of(*OF_LINE):
            return path
        if len(launch.arguments) == 1 and launch.arguments[0].endswith(OF_FILE[named(call.func)]):
            return launch.arguments[0]
    return ""


def _parser(tree: ast.Module) -> _Parser | None:
    """The parser of a script; None: there is none, or something else may add to it."""
    made = [node for node in nodes(tree).of(ast.Call) if named(node.func) in PARSERS]
    # The library's own parser, and none of the user's with its name.
    if len(made) != 1 or not LIBRARIES & nodes(tree).packages:
        return None
    given = [
        *made[0].args,
        *(one.value for one in made[0].keywords if one.arg == "dataclass_types"),
    ]
    names = {
        named(target)
        for node in nodes(tree).of(ast.Assign, ast.AnnAssign)
        if node.value is made[0]
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    loads = [node for node in nodes(tree) if isinstance(getattr(node, "ctx", None), ast.Load)]
    uses = [one for one in loads if isinstance(one, ast.Name) and one.id in names] or made
    calls = [
        node
        for node in nodes(tree).of(ast.Call)
        if isinstance(node.func, ast.Attribute) and any(node.func.value is use for use in uses)
    ]
    methods = {*OF_LINE, *OF_FILE, *WITHOUT_ARGUMENTS}
    known = len(calls) == len(uses) and all(named(one.func) in methods for one in calls)
    if len(given) != 1 or not known or not all(map(_is_written, calls)):
        return None
    return _Parser(calls, _classes(given[0]), named(made[0].func) == "TrlParser")


def _is_written(call: ast.Call) -> bool:
    """Whether the name of an option that is added stands there."""
    adds = named(call.func) == "add_argument"
    return not adds or all(isinstance(one, ast.Constant) for one in call.args)


def _classes(given: ast.expr) -> Sequence[str]:
    """The names of the dataclasses, of one or of several."""
    return [ast.unparse(one) for one in getattr(given, "elts", [given])]


def _fields(classes: Sequence[str], module: Module) -> Mapping[str, modules.Field] | None:
    """The fields of all classes; None: one of them cannot be read."""
    found: dict[str, modules.Field] = {}
    for name in classes:
        own = modules.fields(name, module)
        if own is None or any("aliases" in ast.unparse(one.node) for one in own.values()):
            return None
        found |= {key: one for key, one in own.items() if modules.is_given(one)}
    return found


def _as_options(fields: Mapping[str, modules.Field]) -> Iterator[str]:
    for name, field in fields.items():
        for one in (name, f"no_{name}") if modules.may_be_bool(field) else (name,):
            yield f"--{one}"
            yield f"--{one.replace('_', '-')}"


def _refuses(call: ast.Call) -> bool:
    """Whether a method refuses what it does not know, and reads nothing else."""
    of_file = named(call.func) in OF_FILE
    others = [one for one in call.keywords if one.arg not in FILE_WORDS]
    return len(call.args) <= of_file and all(
        one.arg in STRICT and getattr(one.value, "value", None) is STRICT[one.arg] for one in others
    )


def _leaves_arguments(tree: ast.Module) -> bool:
    """Whether a script at most looks at its command line, by number."""
    uses = [node for node in nodes(tree).of(ast.Name, ast.Attribute) if named(node) == "argv"]
    looks = [
        node.value
        for node in nodes(tree).of(ast.Subscript)
        if isinstance(node.slice, ast.Constant) and isinstance(node.ctx, ast.Load)
    ]
    looks += [
        word for node in nodes(tree).of(ast.Call) if named(node.func) == "len" for word in node.args
    ]
    return all(any(use is look for look in looks) for use in uses)
