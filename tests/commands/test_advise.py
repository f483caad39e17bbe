"""``ddoctor plan --advise`` as a user meets it, and as its guide shows it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.forecast.small_models import written
from tests.test_cli import ddoctor, refused

GUIDE = Path(__file__).parents[2] / "docs/guides/plan.md"
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def test_a_number_of_parameters_has_no_step() -> None:
    line = refused("plan", "--params", "8B", "--gpu", "h100", "--advise")
    assert "--advise goes with --model or --workload" in line


@pytest.mark.ward
def test_a_search_from_a_bundle(tmp_path: Path) -> None:
    """Of a tiny model, every configuration fits, so the largest micro-batch is the fastest."""
    source, path = written(tmp_path / "model", num_hidden_layers=1), tmp_path / "plan.json"
    options = ("--gpu", "h100-80", "--gpus", "2", "--sequence", "64", "--global-batch", "8")
    run = ddoctor(
        *("plan", "--model", source, *options, "--advise", "--bundle", path),
        *("--write", tmp_path / "launch"),
        environment={"COLUMNS": "60"},
    )
    assert run.returncode == 0, run.stderr
    assert max(map(len, run.stdout.splitlines())) <= 60
    assert "--micro-batch 4 --global-batch 8 --checkpointing none" in " ".join(run.stdout.split())
    again = ddoctor("diagnose", path, environment={"COLUMNS": "60"})
    assert frontier(again.stdout) == frontier(run.stdout) != []
    arguments = json.loads((tmp_path / "launch" / "arguments.json").read_text())
    assert arguments["per_device_train_batch_size"] == 4
    assert arguments["gradient_checkpointing"] is False


@pytest.mark.ward
def test_the_example_of_the_guide(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    text = GUIDE.read_text(encoding="utf-8").replace("\\\n", " ")
    (command,) = re.findall(r"^ddoctor (plan .*--advise.*)$", text, re.MULTILINE)
    words = shlex.split(command.replace("meta-llama/Llama-3.1-8B", str(tmp_path)))
    run = ddoctor(*words, environment={"COLUMNS": "80"})
    assert run.returncode == 0, run.stderr
    assert frontier(text) == frontier(run.stdout) != []


def frontier(text: str) -> list[str]:
    """The lines of the table."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.split()[:2] == ["strategy", "batch"])
    return [line for line in lines[first:] if line.strip()][:6]
