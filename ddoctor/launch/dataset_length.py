"""How many samples a script trains on, and whether it drops those that fill no batch.

Read where the source has the number: ``dataset.select(range(1000))`` and ``split="train[:1000]"``
of Hugging Face's datasets, and a ``TensorDataset`` of made-up tensors.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddoctor.evidence.launch import Setting
from ddoctor.evidence.source_text import children, nodes
from ddoctor.launch.option_source import named

SPLIT = re.compile(r"train\[:(\d{1,9})\]")
FUNCTIONS = ("select", "load_dataset", "TensorDataset", "DataLoader")
MADE = ("rand", "randn", "randint", "zeros", "ones", "empty", "arange")
# Of datasets, and of torch.utils.data.
RESIZES = (
    *("filter", "train_test_split", "concatenate_datasets", "interleave_datasets", "repeat"),
    *("shard", "skip", "take", "batch", "pack_dataset", "random_split", "Subset"),
    *("ConcatDataset", "WeightedRandomSampler", "RandomSampler"),
)
GROUPS = re.compile(r"(?i)group|pack|chunk|split")
OF_EVALUATION = re.compile(
    r"(?i)(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?![a-z])"
)


def written(tree: ast.Module, name: str) -> Iterator[Setting]:
    """``samples``, if the source has one such number, and ``arg.dataloader_drop_last``.

    ``resized``: where the source may make another number of them.

    ``name``: that of the file.
    """
    calls = [*_calls(tree)]
    found = {number: at for call in calls for at, number in _length(call)}
    if len(found) == 1:
        ((number, at),) = found.items()
        yield Setting(name="samples", value=str(number), file=name, line=at.lineno)
        yield from (_at(node, name) for node in nodes(tree).of(ast.Call) if _resizes(node))
    loaders = [call for call in calls if named(call.func) == "DataLoader"]
    drops = [word for call in loaders for word in call.keywords if word.arg == "drop_last"]
    on = [word.value for word in drops if getattr(word.value, "value", None) is True]
    if on and len(on) == len(loaders):
        yield Setting(name="arg.dataloader_drop_last", value="true", file=name, line=on[0].lineno)


def _at(node: ast.AST, file: str) -> Setting:
    return Setting(name="resized", value="true", file=file, line=getattr(node, "lineno", 0))


def _resizes(node: ast.Call) -> bool:
    """Whether a call may make another number of samples of those that were counted."""
    overflows = any(word.arg == "return_overflowing_tokens" for word in node.keywords)
    first = named(node.args[0]) if node.args else ""
    groups = named(node.func) == "map" and GROUPS.search(first) is not None
    return overflows or groups or named(node.func) in RESIZES


def _length(call: ast.Call) -> Iterator[tuple[ast.expr, int]]:
    function = named(call.func)
    if function == "select" and len(call.args) == 1:
        of = call.args[0]
        if isinstance(of, ast.Call) and named(of.func) == "range" and len(of.args) == 1:
            yield from _constant(of.args[0])
    elif function == "load_dataset":
        for word in call.keywords:
            text = getattr(word.value, "value", None)
            if isinstance(text, str) and (match := SPLIT.fullmatch(text)):
                yield word.value, int(match[1])
    elif function == "TensorDataset" and call.args:
        first = call.args[0]
        if isinstance(first, ast.Call) and named(first.func) in MADE and first.args:
            size = first.args[0]
            shape = size.elts if isinstance(size, ast.Tuple) else first.args
            yield from (found for one in shape[:1] for found in _constant(one))


def _constant(node: ast.expr) -> Iterator[tuple[ast.expr, int]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > 0:
        yield node, node.value


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    """The calls of ``FUNCTIONS``, but those for an evaluation, and those of a branch."""
    lines = {call.lineno for call in nodes(tree).of(ast.Call) if named(call.func) in FUNCTIONS}
    for node in _always(tree, ast.expr) if lines else ():
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr):
            continue
        if node.value and any(node.lineno <= at <= (node.end_lineno or at) for at in lines):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for call in _always(node.value):
                if isinstance(call, ast.Call) and named(call.func) in FUNCTIONS:
                    on = [call.func.value] if isinstance(call.func, ast.Attribute) else []
                    words = " ".join(map(ast.unparse, (*targets, *on)))
                    # A few samples may be selected to be shown.
                    shows = named(call.func) == "select" and "train" not in words.lower()
                    if not OF_EVALUATION.search(words) and not shows:
                        yield call


def _always(tree: ast.AST, closed: type[ast.expr] = ast.IfExp) -> Iterator[ast.AST]:
    """A node and what is in it, but what a branch may skip, or what a ``closed`` one holds."""
    ahead = [tree]
    while ahead:
        node = ahead.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__"):
            ahead += node.body
        elif not isinstance(node, (ast.If, closed)):
            ahead += children(node)
