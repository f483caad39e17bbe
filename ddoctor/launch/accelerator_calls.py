"""What a script gives to accelerate's ``Accelerator``, as its source writes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.evidence.launch import Setting
from ddoctor.evidence.source_text import nodes
from ddoctor.launch.option_source import named

# accelerate/accelerator.py, Accelerator; accelerate/utils/dataclasses.py, DataLoaderConfiguration.
ARGUMENTS = {
    "Accelerator": ("split_batches", "mixed_precision", "gradient_accumulation_steps"),
    "DataLoaderConfiguration": ("split_batches",),
}


def written(tree: ast.Module, name: str) -> Iterator[Setting]:
    """Each as ``accelerator.split_batches``, with the text of its expression: ``args.split``."""
    for node in nodes(tree).of(ast.Call):
        if wanted := ARGUMENTS.get(named(node.func)):
            for word in node.keywords:
                if word.arg in wanted:
                    yield Setting(
                        name=f"accelerator.{word.arg}",
                        value=ast.unparse(word.value),
                        file=name,
                        line=word.value.lineno,
                    )
