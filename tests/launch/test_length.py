"""The steps, the schedule, the batch and the checkpoints that a report shows of a launch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import TWO_GPUS
from tests.launch.installed import TRL, install
from tests.launch.reviewed import reviewed
from tests.launch.test_what_starts import head

TRAINER = """
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
    parser = HfArgumentParser(TrainingArguments)
    (args,) = parser.parse_args_into_dataclasses()
    train = load_dataset("imdb", split="train[:10000]")
    model = AutoModelForCausalLM.from_pretrained("org/llama-7b", torch_dtype="bfloat16")
    Trainer(model, args, train_dataset=train).train()
"""
STREAMED = TRAINER.replace(', split="train[:10000]"', "")
OWN = """
    import argparse
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    p = argparse.ArgumentParser()
    p.add_argument("--batch_size", type=int, default=10)
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()
    data = TensorDataset(torch.randn(1000, 8))
    loader = DataLoader(data, args.batch_size)
    for epoch in range(args.epochs):
        for batch in loader:
            loss = model(batch).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""
TWO = "torchrun --nproc-per-node 2 train.py"


@pytest.mark.parametrize(
    ("source", "line", "steps"),
    [
        # 10,000 samples by 16 a step are 625 steps.
        (TRAINER, "--num_train_epochs 2", "1,250"),
        (TRAINER, "--num_train_epochs 0.5", "313"),
        (TRAINER, "", "1,875"),
        (TRAINER, "--gradient_accumulation_steps 5", "375"),
        # The last batches of an epoch are one more step, or none.
        (TRAINER, "--gradient_accumulation_steps 3", None),
        (
            TRAINER.replace("train = ", "train = group_texts; all = ").replace(
                "args, train_dataset=train", "args, train_dataset=all.map(train)"
            ),
            "",
            "1,875",
        ),
        (TRAINER.replace("    model =", "    train = train.filter(long)\n    model ="), "", None),
        (
            TRAINER.replace("    model =", "    train = train.map(group_texts)\n    model ="),
            "",
            None,
        ),
        (STREAMED, "--num_train_epochs 2", None),
        (OWN, "", "150"),
        (OWN, "--epochs 2", "100"),
        (OWN.replace("optimizer.zero_grad()", "break"), "", None),
    ],
)
def test_the_steps_of_all_epochs(tmp_path: Path, source: str, line: str, steps: str | None) -> None:
    told = head(tmp_path, f"{TWO} {line}", source)["length"]
    assert (f" = {steps} optimizer steps" in told) is (steps is not None)
    assert steps is not None or "optimizer steps" not in told


@pytest.mark.parametrize(
    ("source", "line", "told"),
    [
        (
            TRAINER,
            "--max_steps 1000 --lr_scheduler_type cosine --warmup_steps 50",
            "cosine over 1,000 steps (the command line), warm-up 50 steps (5 %)",
        ),
        (
            TRAINER,
            "--warmup_steps 0.1",
            "linear over 1,875 steps (the default of TrainingArguments), warm-up 188 steps (10 %)",
        ),
        (
            TRAINER,
            "--max_steps 1000 --warmup_ratio=0.03",
            "linear over 1,000 steps (the default of TrainingArguments), warm-up 30 steps (3 %)",
        ),
        (
            TRAINER,
            "--max_steps 1000 --lr_scheduler_type constant_with_warmup --warmup_steps 100",
            "constant_with_warmup (the command line), warm-up 100 steps (10 %)",
        ),
        (
            STREAMED,
            "--warmup_steps 0.1 --num_train_epochs 2",
            "linear (the default of TrainingArguments), warm-up 10 % of all steps",
        ),
        (STREAMED, "--num_train_epochs 2", None),
        # A loop of the script's own may count otherwise.
        (OWN, "--lr_scheduler_type cosine --warmup_steps 100", None),
    ],
)
def test_the_schedule_of_the_trainer(
    tmp_path: Path, source: str, line: str, told: str | None
) -> None:
    found = head(tmp_path, f"{TWO} {line}", source)
    assert found.get("schedule") == told
    assert told is None or "warm-up" not in found["length"]


def test_the_warm_up_of_a_loop_of_its_own(tmp_path: Path) -> None:
    told = head(tmp_path, f"{TWO} --max_steps 900 --warmup_steps 100", "import torch\n")["length"]
    assert told == "900 optimizer steps (the command line), warm-up 100"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--max_steps 1000 --save_steps 100 --save_total_limit 2", "10 in all, the last 2 kept, "),
        ("--max_steps 1000 --save_steps 100 --save_total_limit 20", "10 in all, 14 GB of weights"),
        ("--num_train_epochs 2 --save_steps 1000", "2 in all, 14 GB of weights each, 28 GB writt"),
        ("--num_train_epochs 3 --save_strategy epoch", "3 in all, 14 GB of weights each, 42 GB"),
        ("--max_steps 1000 --save_strategy no", "14 GB of weights each"),
    ],
)
def test_the_checkpoints_of_the_trainer(tmp_path: Path, line: str, told: str) -> None:
    assert head(tmp_path, f"{TWO} {line}", TRAINER)["checkpoints"].startswith(told)


DERIVED = """
    from dataclasses import dataclass
    from transformers import TrainingArguments
    @dataclass
    class Ours(TrainingArguments):
        per_device_train_batch_size: int = 4
        lr_scheduler_type: str = "cosine"
"""


def test_the_defaults_of_a_class_of_the_script(tmp_path: Path) -> None:
    found = head(tmp_path, f"{TWO} --max_steps 10 --save_steps 4", DERIVED)
    assert found["batch"] == "4 a rank (the default of Ours) × 2 ranks = 8 samples a step"
    assert found["schedule"] == "cosine over 10 steps (the default of Ours)"
    assert found["learning rate"] == "5e-05 (the default of Ours)"
    assert found["checkpoints"] == "3 in all"
    # Of two classes, only what both say is known.
    other = DERIVED.partition("@dataclass")[2].replace("Ours", "Other").replace("cosine", "linear")
    found = head(tmp_path, f"{TWO} --max_steps 10", f"{DERIVED}\n    @dataclass{other}")
    assert found["batch"].startswith("4 a rank")
    assert "schedule" not in found
    # This is a class of another kind.
    found = head(tmp_path, TWO, DERIVED.replace("(TrainingArguments)", ""))
    assert "batch" not in found or "Ours" not in found["batch"]


def test_the_defaults_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, TRL)
    source = "from trl import SFTConfig\nSFTConfig(max_steps=100, warmup_steps=10)\n"
    for command, text in ((TWO, source), ("trl sft --max_steps 100 --warmup_steps 10", "")):
        found = head(tmp_path, command, text)
        assert found["learning rate"] == "2e-05 (the default of SFTConfig)"
        assert found["schedule"] == (
            "linear over 100 steps (the default of SFTConfig), warm-up 10 steps (10 %)"
        )


ZERO = {
    "train_batch_size": 64,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_num_steps": 100, "total_num_steps": 2000},
    },
}
AUTO = {
    **dict.fromkeys(("train_batch_size", "gradient_accumulation_steps"), "auto"),
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_num_steps": "auto", "total_num_steps": "auto"},
    },
}
BY_DEEPSPEED = "deepspeed --num_gpus 4 train.py --deepspeed_config ds.json"


def changed(**values: object) -> str:
    """The file with other values; None: without it."""
    return json.dumps({key: one for key, one in {**ZERO, **values}.items() if one is not None})


@pytest.mark.parametrize(
    ("config", "batch"),
    [
        (changed(), "8 a rank (ds.json:1) × 4 ranks × 2 micro-batches = 64 samples a step"),
        (
            changed(gradient_accumulation_steps=None),
            "16 a rank (ds.json:1) × 4 ranks = 64 samples a step",
        ),
        (
            changed(gradient_accumulation_steps=None, train_micro_batch_size_per_gpu=4),
            "4 a rank (ds.json:1) × 4 ranks × 4 micro-batches = 64 samples a step",
        ),
        (
            changed(train_batch_size=None, train_micro_batch_size_per_gpu=4),
            "4 a rank (ds.json:1) × 4 ranks × 2 micro-batches = 32 samples a step",
        ),
        # DeepSpeed refuses it.
        (changed(train_batch_size=63), None),
        (changed(train_batch_size="auto"), None),
    ],
)
def test_the_batch_that_deepspeed_completes(tmp_path: Path, config: str, batch: str | None) -> None:
    found = head(tmp_path, BY_DEEPSPEED, "import deepspeed\n", ds_json=config)
    assert found.get("batch") == batch


@pytest.mark.parametrize(
    ("config", "parallelism", "schedule"),
    [
        (
            changed(),
            "DeepSpeed ZeRO-2, bf16",
            "WarmupDecayLR over 2,000 steps (ds.json:1), warm-up 100 steps (5 %)",
        ),
        (
            changed(
                bf16=None,
                fp16={"enabled": True},
                scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
            ),
            "DeepSpeed ZeRO-2, fp16",
            "WarmupLR (ds.json:1), warm-up 10 steps",
        ),
        (changed(bf16={"enabled": False}, scheduler=None), "DeepSpeed ZeRO-2", None),
        (changed(scheduler={"type": "WarmupLR"}), "DeepSpeed ZeRO-2, bf16", None),
    ],
)
def test_precision_and_schedule_of_deepspeed(
    tmp_path: Path, config: str, parallelism: str, schedule: str | None
) -> None:
    found = head(tmp_path, BY_DEEPSPEED, "import deepspeed\n", ds_json=config)
    assert found["parallelism"] == parallelism
    assert found.get("schedule") == schedule


def test_what_the_trainer_puts_into_the_file_of_deepspeed(tmp_path: Path) -> None:
    line = f"{TWO} --deepspeed ds.json --max_steps 1000 --warmup_steps 0.1 --bf16"
    found = head(tmp_path, line, TRAINER, ds_json=json.dumps(AUTO))
    assert found["parallelism"] == "DeepSpeed ZeRO-2, bf16"
    assert found["batch"].startswith("8 a rank (the default of TrainingArguments) × 2 ranks = 16")
    assert found["schedule"] == (
        "WarmupDecayLR over 1,000 steps (ds.json:1), warm-up 100 steps (10 %)"
    )


LIGHTNING = """
    import lightning as L
    from torch.utils.data import DataLoader
    class Net(L.LightningModule):
        def train_dataloader(self):
            return DataLoader(self.data, batch_size=16)
        def val_dataloader(self):
            return DataLoader(self.held, batch_size=64)
    L.Trainer(accelerator="gpu", {}).fit(Net())
"""
FABRIC = """
    import lightning as L
    from torch.utils.data import DataLoader
    fabric = L.Fabric(accelerator="cuda", devices=4)
    fabric.launch()
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=16))
"""


@pytest.mark.parametrize(
    ("source", "batch"),
    [
        (LIGHTNING.format("devices=4"), "16 a rank (train.py:5) × 4 ranks = 64 samples a step"),
        (
            LIGHTNING.format("devices=2, num_nodes=2, accumulate_grad_batches=4"),
            "16 a rank (train.py:5) × 4 ranks × 4 micro-batches = 256 samples a step",
        ),
        (FABRIC, "16 a rank (train.py:5) × 4 ranks = 64 samples a step"),
        (LIGHTNING.format("devices=4").replace("=16", "=self.size"), None),
        (LIGHTNING.format("devices=4").replace("val_", "more_"), None),
        (LIGHTNING.format("devices=count()"), "16 samples a rank (train.py:5)"),
    ],
)
def test_the_batch_of_lightning(tmp_path: Path, source: str, batch: str | None) -> None:
    assert head(tmp_path, "python train.py", source).get("batch") == batch


@pytest.mark.parametrize(
    ("given", "command", "then"),
    [
        ("devices=4", TWO, "asks for 4 devices, and torchrun starts 2 ranks"),
        ("devices=4", "torchrun --nnodes 2 --nproc-per-node 4 train.py", "torchrun starts 8 ranks"),
        ("devices=2, num_nodes=2", TWO, "2 devices on each of 2 hosts, and torchrun starts 2"),
        ("devices=4", "accelerate launch --num_processes 2 train.py", "accelerate starts 2 ranks"),
        ("devices=1", TWO, "starts 2 ranks (the command line): each of them trains alone on the"),
        ("devices=1, strategy='ddp'", TWO, "Lightning raises a ValueError"),
        ("devices=2", TWO, ""),
        ("devices='auto'", TWO, ""),
        ("devices=-1", TWO, ""),
        ("devices=count()", TWO, ""),
        ("devices=4, num_nodes=count()", TWO, ""),
        ("devices=1", "torchrun --nproc-per-node 1 train.py", ""),
        ("devices=4, num_nodes=2", "torchrun --nnodes 2 --nproc-per-node 4 train.py", ""),
        ("devices=4", "torchrun --nnodes 1:4 --nproc-per-node 4 train.py", ""),
        ("devices=4", "python train.py", ""),
    ],
)
def test_other_ranks_than_lightning_asks_for(
    tmp_path: Path, given: str, command: str, then: str
) -> None:
    found = reviewed(tmp_path, command, LIGHTNING.format(given), gpus=8)
    wrong = [one for one in found if "asks for" in one.because]
    assert bool(wrong) is bool(then)
    for one in wrong:
        assert then in one.because
        assert one.severity is Severity.ERROR


SPLIT = "from accelerate import Accelerator\nAccelerator({})\n"
BY_FILE = "accelerate launch --config_file two.yaml {} train.py"


@pytest.mark.parametrize(
    ("command", "given", "decided"),
    [
        (BY_FILE.format("--num_processes 4"), "", "ranks 4 of the command line, not 2 of two.yaml"),
        (
            BY_FILE.format("--mixed_precision fp16"),
            "",
            "precision fp16 of the command line, not bf16 of two.yaml:8",
        ),
        (
            f"ACCELERATE_MIXED_PRECISION=fp16 {BY_FILE.format('')}",
            "",
            "precision bf16 of two.yaml:8, not fp16 of ACCELERATE_MIXED_PRECISION (the command",
        ),
        (
            "ACCELERATE_MIXED_PRECISION=fp16 accelerate launch --num_processes 2 train.py",
            "",
            "precision no of the default of accelerate launch, not fp16 of ACCELERATE_MIXED_PREC",
        ),
        (
            "PET_NPROC_PER_NODE=8 torchrun --nproc-per-node 4 train.py",
            "",
            "ranks per host 4 of the command line, not 8 of PET_NPROC_PER_NODE (the command line)",
        ),
        (
            f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 {TWO}",
            "gradient_accumulation_steps=2",
            "accumulation 4 of ACCELERATE_GRADIENT_ACCUMULATION_STEPS (the command line), not 2 o",
        ),
        (BY_FILE.format("--num_processes 2 --mixed_precision bf16"), "", None),
        (f"ACCELERATE_MIXED_PRECISION=bf16 {BY_FILE.format('')}", "", None),
        (f"ACCELERATE_MIXED_PRECISION=fp16 {TWO}", "", None),
        ("PET_NPROC_PER_NODE=8 torchrun train.py", "", None),
        (f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 {TWO}", "", None),
        (
            f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 {TWO}",
            "gradient_accumulation_steps=count()",
            None,
        ),
    ],
)
def test_what_decides_between_two_places(
    tmp_path: Path, command: str, given: str, decided: str | None
) -> None:
    found = head(tmp_path, command, SPLIT.format(given), two_yaml=TWO_GPUS).get("decided")
    assert found is None if decided is None else (found or "").startswith(decided)


def test_a_variable_without_a_launcher_that_overrides_it(tmp_path: Path) -> None:
    line = f"ACCELERATE_MIXED_PRECISION=fp16 {TWO}"
    assert head(tmp_path, line, SPLIT.format(""))["parallelism"] == "fp16"


OF_OPTION = """
import argparse
import lightning as L

parser = argparse.ArgumentParser()
parser.add_argument("--gpus", type=int{default})
args = parser.parse_args()
{more}
L.Trainer(devices=args.gpus, strategy="ddp").fit(model)
"""


@pytest.mark.parametrize(
    ("words", "default", "more", "ranks"),
    [
        ("--gpus 8", "", "", "1 host × 8 ranks"),
        ("", ", default=2", "", "1 host × 2 ranks"),
        ("--gpus 8", ", default=2", "", "1 host × 8 ranks"),
        ("--gpus 8", "", "args.gpus = count()", "a number of ranks that is not known here"),
        ("", "", "", "a number of ranks that is not known here"),
    ],
)
def test_devices_of_lightning_by_an_option(
    tmp_path: Path, words: str, default: str, more: str, ranks: str
) -> None:
    source = OF_OPTION.format(default=default, more=more)
    assert ranks in head(tmp_path, f"python train.py {words}", source)["starts"]
