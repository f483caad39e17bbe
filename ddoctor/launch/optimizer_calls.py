"""The learning rates that a script gives to its optimizers as numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddoctor.evidence.launch import Setting
from ddoctor.evidence.source_text import nodes
from ddoctor.launch.option_source import named, options_of

# Of torch.optim, transformers, bitsandbytes, apex, DeepSpeed.
OPTIMIZER = re.compile(
    r"(?:SGD|Fused|Paged|CPU|DeepSpeedCPU|N|R|Sparse)?Ada(?:m|mW|max|grad|delta|factor)(?:W?8bit)?"
    r"|SGD|RMSprop|Rprop|ASGD|Lion|LAMB|LARS|FusedLAMB|Muon|LBFGS"
)
OPTIONS = ("lr", "learning_rate")
WHOLE = ("args", "arguments", "opts", "options", "config", "cfg", "hparams", "flags")


def rates(tree: ast.Module, name: str) -> Iterator[Setting]:
    """One ``optimizer.lr`` for each number; none where one of the optimizers gets no number.

    Its value is empty where that number is not the script's option, either: nothing reads it.
    """
    found: list[Setting] = []
    for node in nodes(tree).of(ast.Call):
        if OPTIMIZER.fullmatch(named(node.func)):
            by_name = (word.value for word in node.keywords if word.arg == "lr")
            value = next(by_name, node.args[1] if len(node.args) > 1 else None)
            constant = _constant(tree, value)
            if constant is None or not isinstance(constant.value, float | int):
                yield from _unknown(tree, node, name)
                return
            found.append(
                Setting(
                    name="optimizer.lr",
                    value=str(constant.value),
                    file=name,
                    line=constant.lineno,
                )
            )
    yield from found


def _constant(tree: ast.Module, value: ast.expr | None) -> ast.Constant | None:
    """What it is, or what a variable is that the script assigns once; None: no constant."""
    if isinstance(value, ast.Name):
        given = [
            node.value
            for node in nodes(tree).of(ast.Assign)
            if any(isinstance(one, ast.Name) and one.id == value.id for one in node.targets)
        ]
        value = given[0] if len(given) == 1 else None
    return value if isinstance(value, ast.Constant) else None


def _unknown(tree: ast.Module, call: ast.Call, name: str) -> Iterator[Setting]:
    options = {*OPTIONS} & {one.key for one in options_of(tree).rows}
    read = any(
        node.attr in options if isinstance(node, ast.Attribute) else _passes_all(node)
        for node in nodes(tree).of(ast.Attribute, ast.Call)
    )
    if options and not read:
        yield Setting(name="optimizer.lr", value="", file=name, line=call.lineno)


def _passes_all(call: ast.Call) -> bool:
    """Whether a function gets all arguments of the script, of which it may read the rate."""
    given = (*call.args, *(word.value for word in call.keywords))
    return any(named(one) in WHOLE for one in given)
