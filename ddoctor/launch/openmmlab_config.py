"""The Python configs of OpenMMLab (mmdetection and its kin): rate, batch, and for how many GPUs.

Read as mmengine.readthedocs.io says ("Config", "Automatically scaling the learning rate"): assigned
``dict(…)`` calls, on top of the files in ``_base_``. A name such as ``net_8xb32_coco.py`` says that
8 GPUs have 32 samples each; older files say in a comment for how many GPUs their rate is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace as with_fields

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.source_text import syntax_tree
from ddoctor.launch import files

MOST_BASES = 8
"""Files that build on each other."""
OF_NAME = re.compile(r"[-_](?P<ranks>\d{1,4})xb?(?P<each>\d{1,4})(?=[-_.])")
OF_COMMENT = re.compile(r"#.*?\b(?P<ranks>\d{1,4})\s*gpus?\b(?!\s*[x*×])", re.IGNORECASE)
NAMES = {
    "optimizer.lr": "arg.lr",
    "optim_wrapper.optimizer.lr": "arg.lr",
    "data.samples_per_gpu": "arg.batch_size",
    "data.videos_per_gpu": "arg.batch_size",
    "train_dataloader.batch_size": "arg.batch_size",
    "auto_scale_lr.base_batch_size": "made-for.batch",
    "auto_scale_lr.enable": "arg.auto_scale_lr",
}
"""Their keys, and what other launches call the same."""


def read(path: Path, name: str, given: Sequence[Setting]) -> Iterator[Setting]:
    """What a config and its bases set; of several settings with one name, the first wins.

    ``given``: the arguments of the script, whose ``--cfg-options`` set the same keys.
    """
    found = [*_of_files(path, name, MOST_BASES)]
    for one in given:
        # The word that follows the option is its value.
        typed = one.value if one.name == "arg.cfg_options" else f"{one.name[4:]}={one.value}"
        key, _, value = typed.partition("=")
        if key in NAMES:
            yield with_fields(one, name=NAMES[key], value=value)
    if any(one.name == "arg.lr" for one in found):
        if match := OF_NAME.search(name.rpartition("/")[2]):
            yield Setting(name="made-for.ranks", value=match["ranks"], file=name)
        yield from found


def _of_files(path: Path, name: str, bases: int) -> Iterator[Setting]:
    try:
        text = files.text(path, name)
        body = syntax_tree(text).body
    except (DoctorError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    lines = text.splitlines()
    values = {
        target.id: node.value
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for top, value in values.items():
        for key, constant in _constants(top, value):
            if key in NAMES:
                line = constant.lineno
                yield Setting(name=NAMES[key], value=str(constant.value), file=name, line=line)
                if NAMES[key] == "arg.lr" and (match := OF_COMMENT.search(lines[line - 1])):
                    ranks = match["ranks"]
                    yield Setting(name="made-for.ranks", value=ranks, file=name, line=line)
    base = values.get("_base_")
    for one in (base.elts if isinstance(base, ast.List | ast.Tuple) else [base]) if bases else ():
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield from _of_files(path.parent / one.value, one.value, bases - 1)


def _constants(key: str, value: ast.expr) -> Iterator[tuple[str, ast.Constant]]:
    """The values in ``dict(…)`` and ``{…}``, by their keys joined with dots."""
    if isinstance(value, ast.Constant):
        yield key, value
    elif (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict"
    ):
        for word in value.keywords:
            if word.arg:
                yield from _constants(f"{key}.{word.arg}", word.value)
    elif isinstance(value, ast.Dict):
        for part, inner in zip(value.keys, value.values, strict=True):
            if isinstance(part, ast.Constant):
                yield from _constants(f"{key}.{part.value!s}", inner)
