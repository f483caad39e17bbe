"""The ranks that Ray Train starts, and what a script gives to each."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.evidence.launch import Setting
from ddoctor.evidence.source_text import nodes
from ddoctor.launch.option_source import named


def started(tree: ast.Module, name: str) -> Iterator[Setting]:
    """Its workers as ``ray.ranks``, empty if no constant, and the values of its loop."""
    modules = (node.module or "" for node in nodes(tree) if isinstance(node, ast.ImportFrom))
    if not any(one.startswith("ray.train") for one in modules):
        return
    for node in (one for one in nodes(tree) if isinstance(one, ast.Call)):
        for word in node.keywords:
            if word.arg == "num_workers" and named(node.func) == "ScalingConfig":
                value = named(word.value) if isinstance(word.value, ast.Constant) else ""
                yield Setting(name="ray.ranks", value=value, file=name, line=word.value.lineno)
            elif word.arg == "train_loop_config" and isinstance(word.value, ast.Dict):
                pairs = zip(word.value.keys, word.value.values, strict=True)
                for key, one in pairs:
                    if isinstance(key, ast.Constant) and isinstance(one, ast.Constant):
                        yield Setting(
                            name=f"arg.{named(key)}",
                            value=str(one.value),
                            file=name,
                            line=one.lineno,
                        )
