"""The examples of the guide to plans, with the model that most of them name."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import transformers

from ddoctor.commands.plan import PlanOptions
from ddoctor.evidence.plan import Plan
from ddoctor.options import parse
from ddoctor.report.plan import table

GUIDE = (Path(__file__).parents[2] / "docs/guides/plan.md").read_text(encoding="utf-8")


def save_llama_1b(folder: Path) -> None:
    """Save the config of meta-llama/Llama-3.2-1B."""
    transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
    ).save_pretrained(folder)


def guide_options(command: str, model: Path) -> PlanOptions:
    """The options of a command line of the guide, of this model."""
    options = parse(PlanOptions, shlex.split(command), "plan")
    assert options is not None
    return replace(options, model=str(model))


def cells(shown: str) -> Sequence[str]:
    """The lines of a table of the guide, without its columns."""
    return [" ".join(line.split()) for line in shown.splitlines()]


def cells_of(plan: Plan) -> Sequence[str]:
    """The same of a plan in a narrow terminal."""
    grid = table(plan, narrow=1)
    return [" ".join(row).strip() for row in (grid.head, *grid.rows)]
