"""The numbers that a report shows of a launch are those with which it trains."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor.evidence.section import Evidence
from ddoctor.launch.review import review
from ddoctor.models import Severity
from ddoctor.report.launch import starts
from tests.launch.files import TWO_GPUS
from tests.launch.reviewed import reviewed

CLASSIFIER = """
    import argparse
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration
    from torch.utils.data import DataLoader
    p = argparse.ArgumentParser()
    p.add_argument("--batch_size", type=int, default=8)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--split", action="store_true")
    p.add_argument("--mixed_precision", default=None)
    args = p.parse_args()
    accelerator = Accelerator({})
    loader = DataLoader(data, batch_size=args.batch_size, num_workers=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""
ACCELERATE = "accelerate launch --config_file two.yaml train.py"


def head(folder: Path, command: str, source: str, **texts: str) -> dict[str, str]:
    """The lines on a launch of train.py; ``two_yaml="…"`` writes the file two.yaml first."""
    for name, text in {"train_py": source, "two_yaml": TWO_GPUS, **texts}.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(dedent(text).lstrip("\n"))
    return dict(starts(Evidence([*review(shlex.split(command), folder)])))


@pytest.mark.parametrize(
    ("given", "line", "batch"),
    [
        ("split_batches=True", "", "4 a rank × 2 ranks = 8 samples a step: split_batches (t"),
        (
            "dataloader_config=DataLoaderConfiguration(split_batches=True)",
            "--batch_size 32",
            "16 a rank × 2 ranks = 32 samples a step: split_batches (train.py:12) divides the "
            "loader's 32 (the command line)",
        ),
        ("split_batches=args.split", "--split", "4 a rank × 2 ranks = 8 samples"),
        # Only the running script knows it.
        ("split_batches=chosen()", "", None),
        ("split_batches=args.split", "", "8 a rank (train.py:7) × 2 ranks = 16 samples a step"),
        ("split_batches=False", "", "8 a rank (train.py:7) × 2 ranks = 16 samples a step"),
        ("", "", "8 a rank (train.py:7) × 2 ranks = 16 samples a step"),
    ],
)
def test_a_batch_that_accelerate_splits(
    tmp_path: Path, given: str, line: str, batch: str | None
) -> None:
    told = head(tmp_path, f"{ACCELERATE} {line}", CLASSIFIER.format(given)).get("batch")
    assert told is None if batch is None else (told or "").startswith(batch)


@pytest.mark.parametrize(
    ("given", "size", "wrong"),
    [
        ("split_batches=True", 7, True),
        ("split_batches=True", 8, False),
        ("split_batches=args.split", 7, False),
        ("", 7, False),
    ],
)
def test_a_batch_that_accelerate_cannot_split(
    tmp_path: Path, given: str, size: int, wrong: bool
) -> None:
    command = f"{ACCELERATE} --batch_size {size}"
    found = reviewed(tmp_path, command, CLASSIFIER.format(given), two_yaml=TWO_GPUS)
    raised = [one for one in found if "leaves a rest" in one.because]
    assert bool(raised) is wrong
    assert not wrong or raised[0].fixes[0].paste == "batch_size = 8"


ZERO_3 = TWO_GPUS.replace("MULTI_GPU", "DEEPSPEED") + (
    "    deepspeed_config:\n      gradient_accumulation_steps: 4\n      zero_stage: 3\n"
)


@pytest.mark.parametrize(
    ("given", "option", "config", "times", "because", "paste"),
    [
        ("=8", "2", TWO_GPUS, 8, "accelerate ignores that of the launch: 8 counts", "--"),
        ("=8", "", ZERO_3, 4, "With DeepSpeed, that of the launch counts: 4", ""),
        ("=8", "8", TWO_GPUS, 8, "", ""),
        ("=8", "", TWO_GPUS, 8, "", ""),
        ("", "2", TWO_GPUS, 1, "", ""),
        ("", "", ZERO_3, 4, "", ""),
    ],
)
def test_accumulation_in_two_places(
    tmp_path: Path, given: str, option: str, config: str, times: int, because: str, paste: str
) -> None:
    source = CLASSIFIER.format(f"gradient_accumulation_steps{given}" if given else "")
    line = f"--gradient_accumulation_steps {option}" if option else ""
    command = ACCELERATE.replace("train.py", f"{line} train.py")
    batch = head(tmp_path, command, source, two_yaml=config)["batch"]
    assert batch.endswith(f" = {8 * 2 * times} samples a step")
    found = reviewed(tmp_path, command, source, two_yaml=config)
    told = [one for one in found if "gradient accumulation" in one.because]
    assert bool(told) is bool(because)
    if told:
        assert because in told[0].because
        assert told[0].fixes[0].paste.startswith(f"{paste}gradient_accumulation_steps")


@pytest.mark.parametrize(
    ("optimizers", "line", "rate"),
    [
        ("torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", "", "0.1 (train.py:5)"),
        ("torch.optim.AdamW(model.parameters(), 3e-4)", "--lr 1", "0.0003 (train.py:5)"),
        ("[torch.optim.Adam(a, lr=1e-3), torch.optim.Adam(b, lr=1e-4)]", "", None),
        ("torch.optim.AdamW(model.parameters(), lr=args.lr)", "", "0.001 (train.py:3)"),
        ("torch.optim.AdamW(model.parameters(), lr=args.lr)", "--lr 2", "2 (the command line)"),
        ("torch.optim.AdamW(model.parameters(), **made(args))", "--lr 2", "2 (the command line)"),
        # Nothing reads the option.
        ("torch.optim.AdamW(model.parameters(), lr=0.1 * ranks)", "", None),
        ("made(model, args)", "", "0.001 (train.py:3)"),
    ],
)
def test_the_rate_that_the_optimizer_gets(
    tmp_path: Path, optimizers: str, line: str, rate: str | None
) -> None:
    source = f"""
        import argparse, torch
        p = argparse.ArgumentParser()
        p.add_argument("--lr", type=float, default=1e-3)
        args = p.parse_args()
        optimizer = {optimizers}
    """
    told = head(tmp_path, f"torchrun --nproc-per-node 8 train.py {line}", source)
    assert told.get("learning rate") == rate


BY_AN_ARGUMENT = """
    import argparse
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-workers", type=int, default=2)
    args = parser.parse_args()
    {}
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers={}, use_gpu=True)).fit()
"""
UNKNOWN = "a number of ranks that is not known here, by ray"


@pytest.mark.parametrize(
    ("before", "workers", "line", "told"),
    [
        ("", "args.num_workers", "--num-workers 8", "8 ranks, by ray"),
        ("", "args.num_workers", "--num-workers=6", "6 ranks, by ray"),
        ("", "args.num_workers", "", "2 ranks, by ray"),
        ("args.num_workers = count()", "args.num_workers", "--num-workers 8", UNKNOWN),
        ("", "own.num_workers", "--num-workers 8", UNKNOWN),
        ("", "args.num_workers - 1", "--num-workers 8", UNKNOWN),
        ("args = changed(args)", "args.num_workers", "--num-workers 8", UNKNOWN),
    ],
)
def test_workers_that_an_argument_gives(
    tmp_path: Path, before: str, workers: str, line: str, told: str
) -> None:
    source = BY_AN_ARGUMENT.format(before, workers)
    assert head(tmp_path, f"ray job submit -- python train.py {line}", source)["starts"] == told


@pytest.mark.parametrize(
    ("uses", "line", "told"),
    [
        ("TrainingArguments", "--max_steps 100 --save_steps 500", "1 in all"),
        ("TrainingArguments", "--max_steps 1000 --save_steps 300", "4 in all"),
        ("TrainingArguments", "--max_steps 1000 --save_steps 250", "4 in all"),
        ("TrainingArguments", "--max_steps 1000 --save_steps 250 --save_strategy epoch", None),
        # A loop of the script's own saves as it is written there.
        ("AutoModel", "--max_steps 1000 --save_steps 300", "3 in all"),
    ],
)
def test_how_many_checkpoints(tmp_path: Path, uses: str, line: str, told: str | None) -> None:
    command = f"torchrun --nproc-per-node 2 train.py {line}"
    assert head(tmp_path, command, f"from transformers import {uses}\n").get("checkpoints") == told


@pytest.mark.parametrize(
    ("given", "line", "told", "decided"),
    [
        ("mixed_precision='fp16'", "", "DDP, fp16", "precision fp16 of train.py:12, not bf16 of t"),
        ("mixed_precision='no'", "", "DDP, fp32", "precision no of train.py:12, not bf16 of two"),
        ("mixed_precision=args.mixed_precision", "--mixed_precision fp16", "DDP, fp16", "preci"),
        # The launch counts.
        ("mixed_precision=args.mixed_precision", "", "DDP, bf16", ""),
        ("mixed_precision=None", "", "DDP, bf16", ""),
        ("", "", "DDP, bf16", ""),
        # Only the running script knows it.
        ("mixed_precision='fp16' if chosen() else 'no'", "", "DDP", ""),
    ],
)
def test_the_precision_that_counts(
    tmp_path: Path, given: str, line: str, told: str, decided: str
) -> None:
    found = head(tmp_path, f"{ACCELERATE} {line}", CLASSIFIER.format(given))
    assert found["parallelism"] == told
    assert found.get("decided", "").startswith(decided)
    assert bool(decided) is ("decided" in found)


MEGATRON = TWO_GPUS.replace("MULTI_GPU", "MEGATRON_LM").replace("processes: 2", "processes: 8")
SHARED = """    megatron_lm_config:
      megatron_lm_tp_degree: 2
      megatron_lm_pp_degree: 2
      megatron_lm_num_micro_batches: 2
"""


@pytest.mark.parametrize(
    ("config", "told", "batch"),
    [
        (
            MEGATRON + SHARED,
            "Megatron-LM, TP 2, PP 2, DP 2, 2 micro-batches a step, bf16",
            "× 2 models × 2 micro-batches = 32",
        ),
        (MEGATRON, "Megatron-LM, DP 8, bf16", "× 8 ranks = 64"),
        # Without Megatron-LM, its numbers say nothing of a step.
        (TWO_GPUS, "DDP, bf16", "× 2 ranks = 16"),
    ],
)
def test_models_of_megatron(tmp_path: Path, config: str, told: str, batch: str) -> None:
    found = head(tmp_path, ACCELERATE, CLASSIFIER.format(""), two_yaml=config)
    assert found["parallelism"] == told
    assert f" {batch} samples a step" in found["batch"]


LIGHTNING = """
    import lightning as L
    from lightning.fabric import Fabric
    {}
"""
TRAINER = "L.Trainer(accelerator='gpu', {}).fit(net, loader)"


@pytest.mark.parametrize(
    ("command", "line", "told"),
    [
        ("python", TRAINER.format("devices=4, strategy='ddp'"), "1 host × 4 ranks, by lightning"),
        ("python", TRAINER.format("devices=[0, 1]"), "1 host × 2 ranks, by lightning"),
        ("python", TRAINER.format("devices=4, num_nodes=2"), "2 hosts × 4 ranks, by lightning"),
        ("python", TRAINER.format("devices=-1"), "1 host × a rank for each GPU, by lightning"),
        (
            "python",
            TRAINER.format("devices=count()"),
            "1 host × a number of ranks that is not known here, by lightning",
        ),
        ("python", "f = Fabric(devices=4); f.launch(main)", "1 host × 4 ranks, by lightning"),
        ("python", "f = Fabric(devices=4)", "one process, by python"),
        ("python", "L.Trainer(accelerator='cpu', devices=4).fit(net)", "one process, by python"),
        ("python", "print(L)", "one process, by python"),
        ("torchrun --nproc-per-node 2", TRAINER.format("devices=4"), "1 host × 2 ranks, by torc"),
    ],
)
def test_ranks_of_lightning(tmp_path: Path, command: str, line: str, told: str) -> None:
    source = LIGHTNING.format(line)
    assert head(tmp_path, f"{command} train.py", source)["starts"].startswith(told)
    found = {one.cause for one in reviewed(tmp_path, f"{command} train.py", source)}
    assert "not-launched-distributed" not in found


def test_another_library_with_a_trainer(tmp_path: Path) -> None:
    source = "from ours import Trainer\nTrainer(devices=4).fit()\n"
    assert head(tmp_path, "python train.py", source)["starts"] == "one process, by python"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--accelerate_config two.yaml", "1 host × 2 ranks, by accelerate"),
        ("--accelerate_config=two.yaml", "1 host × 2 ranks, by accelerate"),
        (
            "--accelerate_config multi_gpu",
            "1 host × a number of ranks that is not known here, by accelerate",
        ),
        ("--accelerate_config multi_gpu --num_processes 4", "1 host × 4 ranks, by accelerate"),
        ("--accelerate_config two.yaml --num_processes=4", "1 host × 4 ranks, by accelerate"),
        ("", "one process, by python"),
    ],
)
def test_ranks_of_trl(tmp_path: Path, line: str, told: str) -> None:
    found = head(tmp_path, f"trl sft --config sft.yaml {line}", "", sft_yaml="max_steps: 10\n")
    assert found["starts"] == told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fsdp2", "FSDP2"),
        ("zero3", "DeepSpeed ZeRO-3"),
        ("multi_gpu", "DDP"),
        ("own_one", "DDP"),
        ("two.yaml", "DDP, bf16"),
    ],
)
def test_the_strategy_of_trl(tmp_path: Path, name: str, told: str) -> None:
    line = f"trl sft --config sft.yaml --accelerate_config {name} --num_processes 4"
    found = head(tmp_path, line, "", sft_yaml="max_steps: 10\n")
    assert found["parallelism"] == told


RAY = """
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer
    TorchTrainer(
        loop,
        train_loop_config={{"batch_size": 32, "lr": 1e-3}},
        scaling_config=ScalingConfig(num_workers={}, use_gpu=True),
    ).fit()
"""


@pytest.mark.parametrize(
    ("workers", "told", "batch"),
    [
        ("4", "4 ranks, by ray", "32 a rank (train.py:5) × 4 ranks = 128 samples a step"),
        ("count()", "a number of ranks that is not known here, by ray", "32 samples a rank (t"),
    ],
)
def test_ranks_of_ray_train(tmp_path: Path, workers: str, told: str, batch: str) -> None:
    runtime = '\'{"env_vars": {"NCCL_DEBUG": "INFO"}}\''
    command = f"ray job submit --runtime-env-json {runtime} -- python train.py"
    found = head(tmp_path, command, RAY.format(workers))
    assert found["starts"] == told
    assert found["batch"].startswith(batch)
    assert found["environment"] == "NCCL_DEBUG=INFO"


@pytest.mark.parametrize(
    ("uses", "line", "told"),
    [
        ("TrainingArguments", "--fp16 true", "DDP, fp16"),
        ("TrainingArguments", "", "DDP, bf16"),
        ("AutoModel", "--fp16 true", "DDP, bf16"),
    ],
)
def test_precision_of_the_trainer(tmp_path: Path, uses: str, line: str, told: str) -> None:
    source = f"from transformers import {uses}\n"
    assert head(tmp_path, f"{ACCELERATE} {line}", source)["parallelism"] == told


def test_ray_without_its_trainer(tmp_path: Path) -> None:
    source = "import ray\nfrom ours import ScalingConfig\nScalingConfig(num_workers=4)\n"
    assert head(tmp_path, "python train.py", source)["starts"] == "one process, by python"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("grad_accum", "4", "× 4 micro-batches = 64"),
        ("accum_iter", "4", "× 4 micro-batches = 64"),
        ("gradient_accumulation", "4", "× 4 micro-batches = 64"),
        ("accumulate", "true", "× 2 ranks = 16"),
        ("accuracy_steps", "4", "× 2 ranks = 16"),
    ],
)
def test_names_of_the_accumulation(tmp_path: Path, name: str, value: str, told: str) -> None:
    source = """
        import argparse
        p = argparse.ArgumentParser()
        p.add_argument("--config")
        args = p.parse_args()
    """
    config = f"train:\n  batch_size: 8\n  {name}: {value}\n"
    command = "torchrun --standalone --nproc-per-node 2 train.py --config own.yaml"
    assert told in head(tmp_path, command, source, own_yaml=config)["batch"]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ('int(os.environ["LOCAL_RANK"])', True),
        ('int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])', True),
        ('int(os.environ["OMPI_COMM_WORLD_RANK"])', False),
        ("chosen()", False),
    ],
)
def test_a_gpu_for_each_local_rank(tmp_path: Path, made: str, told: bool) -> None:
    source = f"""
        import os
        import torch
        local_rank = {made}
        torch.cuda.set_device(local_rank)
        torch.distributed.init_process_group("nccl")
    """
    command = "torchrun --standalone --nproc-per-node 2 train.py"
    assert ("a GPU for each local rank" in head(tmp_path, command, source)["backend"]) is told


@pytest.mark.parametrize(("hosts", "severity"), [(2, Severity.ERROR), (1, Severity.NOTE)])
def test_the_gpu_of_the_global_rank(tmp_path: Path, hosts: int, severity: Severity) -> None:
    source = """
        import os
        import torch
        torch.distributed.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["RANK"]))
        torch.distributed.destroy_process_group()
    """
    command = f"torchrun --nnodes {hosts} --nproc-per-node 2 --rdzv-endpoint=a:29400 train.py"
    found = reviewed(tmp_path, command, source, gpus=2)
    assert [one.severity for one in found if one.cause == "wrong-device-binding"] == [severity]


ACCUMULATES = """
    import argparse
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler
    p = argparse.ArgumentParser()
    p.add_argument("--every", type=int, default=2)
    args = p.parse_args()
    dist.init_process_group("nccl")
    model = DistributedDataParallel(net())
    loader = DataLoader(data, batch_size=8, num_workers=4, sampler=DistributedSampler(data))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, batch in enumerate(loader):
        model(batch).sum().backward()
        if {}:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("test", "batch"),
    [
        ("(step + 1) % 4 == 0", "8 a rank (train.py:11) × 2 ranks × 4 micro-batches = 64 samples"),
        ("step % 4 == 0 or step == last", "8 a rank (train.py:11) × 2 ranks × 4 micro-batches"),
        ("(step + 1) % args.every == 0", "8 a rank (train.py:11) × 2 ranks × 2 micro-batches"),
        ("full(step)", "8 a rank (train.py:11) × 2 ranks = 16 samples a step"),
        ("step % 4 == 0 and warm", "8 a rank (train.py:11) × 2 ranks = 16 samples a step"),
    ],
)
def test_micro_steps_that_the_loop_counts(tmp_path: Path, test: str, batch: str) -> None:
    told = head(tmp_path, "torchrun --nproc-per-node 2 train.py", ACCUMULATES.format(test))
    assert told["batch"].startswith(batch)
