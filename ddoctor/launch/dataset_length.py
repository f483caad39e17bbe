"""How many samples a script trains on, and whether it drops those that fill no batch.

Read where the source has the number: ``dataset.select(range(1000))`` and ``split="train[:1000]"``
of Hugging Face's datasets, and a ``TensorDataset`` of made-up tensors.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddoctor.evidence.launch import Setting
from ddoctor.launch.option_source import named

SPLIT = re.compile(r"train\[:(\d{1,9})\]")
MADE = ("rand", "randn", "randint", "zeros", "ones", "empty", "arange")
OF_EVALUATION = re.compile(
    r"(?i)(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?![a-z])"
)


def written(tree: ast.Module, name: str) -> Iterator[Setting]:
    """``samples``, if the source has one such number, and ``arg.dataloader_drop_last``.

    ``name``: that of the file.
    """
    found = {number: at for at, number in _lengths(tree)}
    if len(found) == 1:
        ((number, at),) = found.items()
        yield Setting(name="samples", value=str(number), file=name, line=at.lineno)
    loaders = list(_made_by(tree, "DataLoader"))
    drops = [word for at in loaders for word in at.keywords if word.arg == "drop_last"]
    on = [word.value for word in drops if getattr(word.value, "value", None) is True]
    if on and len(on) == len(loaders):
        yield Setting(name="arg.dataloader_drop_last", value="true", file=name, line=on[0].lineno)


def _lengths(tree: ast.Module) -> Iterator[tuple[ast.expr, int]]:
    for call in _made_by(tree, "select"):
        of = call.args[0] if len(call.args) == 1 else None
        if isinstance(of, ast.Call) and named(of.func) == "range" and len(of.args) == 1:
            yield from _constant(of.args[0])
    for call in _made_by(tree, "load_dataset"):
        for word in call.keywords:
            text = getattr(word.value, "value", None)
            if isinstance(text, str) and (match := SPLIT.fullmatch(text)):
                yield word.value, int(match[1])
    for call in _made_by(tree, "TensorDataset"):
        first = call.args[0] if call.args else None
        if isinstance(first, ast.Call) and named(first.func) in MADE and first.args:
            size = first.args[0]
            yield from _constant(
                size.elts[0] if isinstance(size, ast.Tuple) and size.elts else size
            )


def _constant(node: ast.expr) -> Iterator[tuple[ast.expr, int]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > 0:
        yield node, node.value


def _made_by(tree: ast.Module, function: str) -> Iterator[ast.Call]:
    """The calls of a function, but those for an evaluation."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr) and node.value:
            target = ast.unparse(node).partition("=")[0] if not isinstance(node, ast.Expr) else ""
            calls = (one for one in ast.walk(node.value) if isinstance(one, ast.Call))
            for call in calls:
                on = call.func.value if isinstance(call.func, ast.Attribute) else None
                words = f"{target} {ast.unparse(on) if on is not None else ''}"
                if named(call.func) == function and not OF_EVALUATION.search(words):
                    yield call
