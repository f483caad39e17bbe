"""Which arguments a script's parser refuses, where the whole parser is in sight."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ddoctor.evidence.launch import Setting, Unknown
from ddoctor.evidence.source_text import nodes
from ddoctor.launch.option_source import named, options_of

# Parsers that take more than the calls of ``add_argument`` show.
OTHERS = {
    *("HfArgumentParser", "TrlParser", "hydra", "fire", "tyro", "draccus", "jsonargparse", "click"),
    *("simple_parsing", "configargparse", "add_arguments", "argv", "set_defaults"),
    *("parse_known_args", "add_subparsers", "add_argument_group", "parents", "optparse"),
}
HELP = ("-h", "--help")
NEAR = 0.75


def refused(tree: ast.Module, given: Mapping[str, Setting], script: str) -> Iterator[Unknown]:
    """Yield the arguments, by the word that gives them, that ``parse_args`` ends the script for."""
    if not given or not _in_sight(tree):
        return
    names = [*HELP]
    names += [name for row in options_of(tree).rows for name in row.names if name[0] == "-"]
    for word, setting in given.items():
        begin = {name for name in names if word.startswith("--") and name.startswith(word)}
        if word not in names and len(begin) != 1 and word[:2] not in names:
            named = msgspec.structs.replace(setting, name=word)
            yield Unknown(setting=named, of=script, nearest=_nearest(word, names))


def _in_sight(tree: ast.Module) -> bool:
    """Whether the script has one parser, to which nothing else may add options."""
    found, makes = set[str](), 0
    parsers = {
        named(target)
        for node in nodes(tree).of(ast.Assign)
        if isinstance(node.value, ast.Call) and named(node.value.func).endswith("ArgumentParser")
        for target in node.targets
    }
    for node in nodes(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found |= {*node.name.split(".")}
        elif isinstance(node, ast.Call):
            found |= {word.arg for word in node.keywords if word.arg}
            makes += named(node.func).endswith("ArgumentParser")
            if named(node.func) == "add_argument" and not _constant(node):
                return False
            given = (*node.args, *(word.value for word in node.keywords))
            if any(named(word) in parsers for word in given if isinstance(word, ast.Name)):
                return False
    return makes == 1 and "parse_args" in found and not found & OTHERS


def _nearest(word: str, names: Sequence[str]) -> str:
    return next(iter(difflib.get_close_matches(word, names, 1, NEAR)), "")


def _constant(node: ast.Call) -> bool:
    """Whether the names of an option are written there, and not computed."""
    return bool(node.args) and all(isinstance(word, ast.Constant) for word in node.args)
