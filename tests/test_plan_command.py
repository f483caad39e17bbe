"""``ddoctor plan`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_cli import ddoctor, refused

SMALL = ("--params", "4.4B", "--precision", "bf16", "--optimizer", "adamw-fp32")
ON_H100 = (*SMALL, "--activations", "10GB", "--gpu", "h100-80")


def test_a_plan_that_fits() -> None:
    run = ddoctor("plan", *ON_H100)
    assert run.returncode == 0, run.stderr
    assert "FSDP, all sharded on 2 GPUs" in run.stdout
    assert "fits ← this" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 100


def test_one_that_does_not() -> None:
    run = ddoctor("plan", *SMALL, "--device-memory", "8GiB", "--gpus", "1", "--json", "-")
    assert run.returncode == 1, run.stderr
    report = json.loads(run.stdout)
    assert report["command"] == "plan"
    assert [one["cause"] for one in report["findings"]] == ["model-does-not-fit"]


def test_the_bundle_can_be_judged_again(tmp_path: Path) -> None:
    bundle, page = tmp_path / "plan.json", tmp_path / "plan.html"
    work = ("--micro-batch", "32", "--samples", "50x30x30", "--epochs", "5", "--gpus", "4")
    run = ddoctor("plan", *ON_H100, *work, "--bundle", bundle, "--html", page)
    assert "352 in an epoch, 1,760 in all" in run.stdout
    again = ddoctor("diagnose", bundle)
    assert again.returncode == run.returncode == 0
    assert "fits ← this" in again.stdout
    assert "GiB on each GPU" in page.read_text()


def test_a_config(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 2000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    device = ("--device-memory", "4GiB", "--gpus", "1,2")
    run = ddoctor("plan", "--model", tmp_path, "--sequence", "256", *device)
    assert run.returncode == 0, run.stderr
    assert "LlamaForCausalLM, 4.19M parameters" in run.stdout
    assert "activations are not in it" not in run.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--gpu", "h100"), "--model CONFIG, or --params"),
        (("--model", "x", "--params", "1B", "--gpu", "h100"), "in one way"),
        (("--model", "x", "--layers", "3", "--gpu", "h100"), "--layers goes with --params"),
        (("--params", "1B", "--sequence", "64", "--gpu", "h100"), "--sequence goes with --model"),
        (("--params", "lots", "--gpu", "h100"), "--params lots"),
        (("--params", "1B", "--gpu", "h1000"), "did you mean"),
        (("--params", "1B"), "--device-memory"),
        (("--params", "1B", "--gpu", "h100", "--device-memory", "1GiB"), "in one way"),
        (("--params", "1B", "--device-memory", "24"), "24GiB"),
        (("--params", "1B", "--gpu", "h100", "--trainable", "2B"), "has only 1B"),
        (("--params", "1B", "--gpu", "h100", "--precision", "int4"), "bf16-mixed"),
        (("--params", "1B", "--gpu", "h100", "--optimizer", "lion"), "adafactor"),
        (("--params", "1B", "--gpu", "h100", "--gpus", "2,0"), "whole number"),
        (("--params", "1B", "--gpu", "h100", "--samples", "9"), "--micro-batch"),
        (("--params", "1B", "--gpu", "h100", "--epochs", "0"), "--epochs"),
    ],
)
def test_a_mistake_gets_one_line(words: tuple[str, ...], told: str) -> None:
    assert told in refused("plan", *words)
