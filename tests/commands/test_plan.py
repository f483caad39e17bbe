"""``ddoctor plan`` as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ddoctor.evidence import bundle
from ddoctor.forecast.launch_files import NAMES
from tests.healthy import healthy
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


def test_the_configuration_of_a_training(tmp_path: Path) -> None:
    first, second = tmp_path / "train.yaml", tmp_path / "accelerate.yaml"
    first.write_text(
        "base_model: org/model\nmicro_batch_size: 4\ngradient_accumulation_steps: 8\n"
        "optimizer: adamw_bnb_8bit\nbf16: true\nsample_packing: true\n"
    )
    second.write_text("num_processes: 4\n")
    run = ddoctor(
        *("plan", first, second, "--params", "7B", "--activations", "10GB", "--gpu", "h100-80"),
        *("--samples", "64000"),
    )
    assert run.returncode == 0, run.stderr
    text = " ".join(run.stdout.split())
    assert "--micro-batch 4, --precision bf16, --global-batch 128" in text
    assert "128 samples: 4 on each of 4 GPUs × 8 accumulation steps" in text
    assert "not in the plan sample_packing true (train.yaml:6)" in text
    assert "FSDP" in text


def test_the_bundle_can_be_judged_again(tmp_path: Path) -> None:
    bundle, page = tmp_path / "plan.json", tmp_path / "plan.html"
    work = ("--micro-batch", "32", "--samples", "50x30x30", "--epochs", "5", "--gpus", "4")
    run = ddoctor("plan", *ON_H100, *work, "--bundle", bundle, "--html", page)
    assert "352 per epoch, 1,760 in total" in run.stdout
    again = ddoctor("diagnose", bundle)
    assert again.returncode == run.returncode == 0
    assert "fits ← this" in again.stdout
    assert "GiB on each GPU" in page.read_text()


def test_the_step_of_a_run_gives_the_time_of_all(tmp_path: Path) -> None:
    run, page = tmp_path / "run.json", tmp_path / "page.html"
    bundle.write(run, healthy())
    model = ("--params", "350M", "--activations", "10GB", "--gpu", "h100-80", "--gpus", "1,8,16")
    told = ddoctor("plan", *model, "--samples", "64000", "--measured", run, "--html", page)
    assert told.returncode == 0, told.stderr
    text = " ".join(told.stdout.split())
    assert "DDP, 8 ranks, 8 samples each" in text
    assert "s by the measured step: " in text
    assert "in total, about 0:01:" in text
    assert "step times as measured, ~: derived" in page.read_text()
    assert max(map(len, told.stdout.splitlines())) <= 100


def test_a_run_tells_the_model_and_the_gpu(tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    bundle.write(run, healthy())
    told = ddoctor("plan", "--measured", run, "--gpus", "1,8", "--activations", "10GB")
    assert told.returncode == 0, told.stderr
    text = " ".join(told.stdout.split())
    assert "350M parameters, bf16-mixed, adamw" in text
    assert "device the sweep's NVIDIA H100 80GB HBM3, 78.9 GiB available to a process" in text
    assert "as measured" in text


HALTING = """
import torch
from torch import nn

def work():
    model = nn.Linear(256, 256)
    def loss(model, samples):
        x = torch.randn(samples, 256)
        while x.norm() > 1:
            x = model(x)
        return x.sum()
    return model, torch.optim.SGD(model.parameters()), loss
"""


@pytest.mark.ward
def test_a_model_that_decides_by_values_is_planned_in_numbers(tmp_path: Path) -> None:
    (tmp_path / "halting.py").write_text(HALTING)
    words = ("plan", "--workload", "halting:work", "--gpu", "h100", "--gpus", "1")
    told = ddoctor(*words, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    text = " ".join(told.stdout.split())
    assert "coarse, by closed form: halting:work has control flow that depends" in text
    assert "not included activations (set --activations)" in text
    more = ddoctor(*words, "--activations", "2GiB", cwd=tmp_path)
    assert "not included" not in more.stdout
    refused = ddoctor(*words, "--checkpointing", "every", cwd=tmp_path)
    assert refused.returncode == 2
    assert "leave out --checkpointing, and pass --activations" in refused.stderr


def test_a_run_on_other_gpus_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    bundle.write(run, healthy())
    told = refused("plan", "--params", "350M", "--gpu", "a100-80", "--measured", run)
    assert "was measured on NVIDIA H100" in told


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
    assert "(set --activations)" not in run.stdout


@pytest.mark.ward
def test_a_config_for_a_known_gpu_has_steps_and_blocks(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "vocab_size": 32000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("--gpu", "rtx-4090", "--gpus", "8", "--sequence", "128", "--precision", "bf16-mixed")
    run = ddoctor(
        *("plan", "--model", tmp_path, *words, "--write", tmp_path / "launch"),
        environment={"COLUMNS": "80"},
    )
    assert run.returncode == 0, run.stderr
    assert re.search(r"s by roofline, at \d+% of the GPU's peak", " ".join(run.stdout.split()))
    assert max(map(len, run.stdout.splitlines())) <= 80
    arguments = json.loads((tmp_path / "launch" / "arguments.json").read_text())
    assert arguments["per_device_train_batch_size"] == 1


def test_the_files_that_start_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "launch"
    run = ddoctor("plan", *ON_H100, "--micro-batch", "4", "--write", folder)
    assert run.returncode == 0, run.stderr
    assert {one.name for one in folder.iterdir()} == set(NAMES)
    assert "num_processes: 2" in (folder / "accelerate.yaml").read_text()
    assert json.loads((folder / "arguments.json").read_text())["per_device_train_batch_size"] == 4


def test_nothing_is_written_where_nothing_fits(tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    run = ddoctor(
        "plan",
        *SMALL,
        "--device-memory",
        "8GiB",
        "--gpus",
        "1",
        "--activations",
        "9GB",
        "--write",
        folder,
    )
    assert run.returncode == 2
    assert "model-does-not-fit" in run.stdout
    (line,) = run.stderr.splitlines()
    assert "nothing fits" in line
    assert not folder.exists()


def test_files_are_replaced_only_by_force(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "launch.sh").write_text("old")
    told = refused("plan", *ON_H100, "--write", tmp_path)
    assert "--force" in told
    assert (tmp_path / "launch.sh").read_text() == "old"
    assert ddoctor("plan", *ON_H100, "--write", tmp_path, "--force").returncode == 0
    assert "accelerate launch" in (tmp_path / "launch.sh").read_text()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert {one.name for one in tmp_path.iterdir()} == {"notes.txt", *NAMES}


def test_an_empty_folder_is_as_good_as_none(tmp_path: Path) -> None:
    assert ddoctor("plan", *ON_H100, "--write", tmp_path).returncode == 0


def test_a_folder_that_cannot_be_is_refused_before_the_work(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    for path in (taken, taken / "launch"):
        told = refused("plan", "--model", "/no/such/model", "--gpu", "h100", "--write", path)
        assert "is not a folder" in told


def test_a_file_that_cannot_be_replaced_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").mkdir()
    run = ddoctor("plan", *ON_H100, "--write", tmp_path, "--force")
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert "cannot write" in line
    assert "launch.sh" in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--gpu", "h100"), "--model CONFIG, --workload"),
        (("--workload", "x:y", "--params", "1B", "--gpu", "h100"), "in one way"),
        (("--workload", "nowhere:y", "--gpu", "h100"), "no module nowhere"),
        pytest.param(
            ("--workload", "json:loads", "--gpu", "h100"), "json:loads", marks=pytest.mark.ward
        ),
        (
            (
                "--workload",
                "tests.memory_sweep.workloads:dense",
                "--sequence",
                "9",
                "--gpu",
                "h100",
            ),
            "no third argument: define loss(model, samples, tokens)",
        ),
        (("--gpu", "h100"), "--params 4.4B, or --measured BUNDLE of a run"),
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
        (
            ("--params", "1B", "--gpu", "h100", "--optimizer", "lion_16bit"),
            "did you mean 'lion_8bit'",
        ),
        (("--params", "1B", "--gpu", "h100", "--optimizer", "xyz"), "adafactor, muon, or a name"),
        (("--params", "1B", "--gpu", "h100", "--gpus", "2,0"), "whole number"),
        (("--params", "1B", "--gpu", "h100", "--samples", "9"), "--micro-batch"),
        (("--params", "1B", "--gpu", "h100", "--epochs", "0"), "--epochs"),
        (("--params", "1B", "--gpu", "h100", "--loading", "0.1"), "--loading goes with --step"),
        (("--params", "1B", "--gpu", "h100", "--epochs", "1e300"), "none above 1e+18"),
        (("--params", "1B", "--gpu", "h100", "--epochs", "nan"), "--epochs and --step must be"),
        (("--params", "1B", "--gpu", "h100", "--step", "1", "--measured", "x"), "in one way"),
        (("--params", "1B", "--gpu", "h100", "--measured", "/no/run.json"), "cannot read /no/run"),
        (
            ("--params", "1B", "--gpu", "h100", "--attention", "sdpa"),
            "--attention goes with --model",
        ),
        (("--params", "1B", "--gpu", "h100", "--attention", "fast"), "eager, sdpa, flash"),
        (("--params", "1B", "--gpu", "h100", "--loss", "fused"), "--loss goes with --model"),
        (
            ("--params", "1B", "--gpu", "h100", "--loss", "chunked"),
            "plain, fused, compiled or chunked:N",
        ),
        (
            ("--params", "1B", "--gpu", "h100", "--checkpointing", "selective:0"),
            "none, every, selective, selective:op or selective:N",
        ),
        (
            ("--model", "x", "--gpu", "h100", "--attention", "flash", "--precision", "fp32"),
            "not fp32",
        ),
        (
            ("--params", "1B", "--gpu", "h100", "--compile"),
            "--compile goes with --model or --workload",
        ),
        (("--params", "1B", "--gpu", "h100", "--method", "dpo"), "--method dpo goes with --model"),
        (("--params", "1B", "--gpu", "h100", "--lengths", "x"), "--lengths goes with --model"),
        (("--model", "x", "--gpu", "h100", "--lengths", "/no/file"), "/no/file: No such file"),
        (("--params", "1B", "--gpu", "h100", "--method", "ppo"), "use sft, dpo, grpo"),
        (
            ("--model", "x", "--gpu", "h100", "--method", "dpo", "--loss", "fused"),
            "pass --loss plain",
        ),
        (
            ("--model", "x", "--gpu", "h100", "--vllm-share", "0.3"),
            "--vllm-share goes with --method grpo",
        ),
        (("--model", "x", "--gpu", "h100", "--vllm-share", "1"), "a share of the GPU"),
        (("--model", "x", "--gpu", "h100", "--vllm-share", "nan"), "a share of the GPU"),
        (("--params", "1B", "--gpu", "h100", "--force"), "--force goes with --write"),
        (("--params", "1B", "--gpu", "h100", "--images", "1x9x9"), "--images goes with --model"),
        (
            ("--model", "x", "--gpu", "h100", "--images", "1x9x9", "--method", "dpo"),
            "--images does not go with --method dpo",
        ),
    ],
)
def test_a_mistake_gets_one_line(words: tuple[str, ...], told: str) -> None:
    assert told in refused("plan", *words)


def test_the_example_of_model_parallelism_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/plan.md").read_text(encoding="utf-8")
    section = guide.partition("## Model parallelism")[2]
    command, shown = re.findall(r"```(?:sh)?\n(?:ddoctor )?(.*?)```", section, re.DOTALL)[:2]
    run = ddoctor(*command.split())
    assert run.returncode == 0, run.stderr
    assert shown in run.stdout
    assert "FSDP, gradients and states sharded on 64 GPUs: 4 × tensor 8 × pipeline 2" in " ".join(
        run.stdout.split()
    )


def test_dimensions_that_do_not_fit_the_number_of_gpus() -> None:
    said = refused("plan", "--params", "7B", "--gpu", "h100", "--tp", "8", "--gpus", "12")
    assert "tensor 8 needs a multiple of 8 GPUs, and --gpus is 12" in said
