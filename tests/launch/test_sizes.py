"""What a launch asks for: memory for a model of a known size, GPUs, RDMA devices, batches."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor.evidence.section import Evidence
from ddoctor.launch.review import review
from ddoctor.report.launch import starts
from tests.launch.files import FSDP, TWO_GPUS, told
from tests.launch.reviewed import causes, reviewed

DDP = """
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from transformers import AutoModelForCausalLM
    dist.init_process_group("nccl")
    NAME = "a/model-{size}b"
    model = AutoModelForCausalLM.from_pretrained(NAME, torch_dtype=torch.bfloat16{more})
    model = {wrap}(model)
    optimizer = torch.optim.{optimizer}(model.parameters())
    for batch in loader:
        loss = model(batch).loss
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
"""
SHARDED = """
    from transformers import AutoModelForCausalLM
    from accelerate import Accelerator
    accelerator = Accelerator()
    model = accelerator.prepare(AutoModelForCausalLM.from_pretrained("a/model-{}b"))
"""
JOB = """
    #!/bin/bash
    #SBATCH --nodes=1
    #SBATCH --ntasks-per-node=1
    {}
    srun torchrun --standalone --nproc-per-node=4 train.py
"""
PODS = """
    apiVersion: batch/v1
    kind: {kind}
    spec:
      parallelism: {pods}
      completions: {pods}
      {limit}
      template:
        spec:
          containers:
          - name: trainer
            image: img
            command: ["torchrun", "--nnodes={pods}", "--nproc-per-node=8", "--rdzv-backend=c10d",
              "--rdzv-id=1", "--rdzv-endpoint=first:29500", "train.py", "--lr", "1e-3"]
            resources: {{limits: {{nvidia.com/gpu: {gpus}, {more} memory: 900Gi}}}}
            volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
          volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
"""
WHOLE = """
    import torch
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained("a/model-7b", torch_dtype=torch.bfloat16)
    fully_shard(model)
"""
SPLIT = """
    from accelerate import Accelerator, DataLoaderConfiguration
    from torch.utils.data import DataLoader
    accelerator = Accelerator({})
    model, loader = accelerator.prepare(net, DataLoader(data, batch_size={}, num_workers=2))
"""


@pytest.mark.parametrize(
    ("size", "more", "wrap", "optimizer", "wrong"),
    [
        (70, "", "DistributedDataParallel", "AdamW", True),
        (7, "", "DistributedDataParallel", "AdamW", False),
        (70, "", "DistributedDataParallel", "SGD", False),
        (70, ", load_in_4bit=True", "DistributedDataParallel", "AdamW", False),
        (70, "", "torch.distributed.fsdp.fully_shard", "AdamW", False),
    ],
)
def test_a_model_that_ddp_keeps_whole(
    tmp_path: Path, size: int, more: str, wrap: str, optimizer: str, wrong: bool
) -> None:
    source = DDP.format(size=size, more=more, wrap=wrap, optimizer=optimizer)
    command = "torchrun --standalone --nproc-per-node 8 train.py"
    assert ("model-does-not-fit" in causes(tmp_path, command, source, gpus=0)) is wrong


@pytest.mark.parametrize(
    ("size", "kind", "noted"),
    [
        (70, "FULL_STATE_DICT", True),
        (3, "FULL_STATE_DICT", False),
        (70, "SHARDED_STATE_DICT", False),
    ],
)
def test_a_whole_state_at_each_checkpoint(
    tmp_path: Path, size: int, kind: str, noted: bool
) -> None:
    config = FSDP.replace("SHARDED_STATE_DICT", kind)
    command = "accelerate launch --config_file fsdp.yaml train.py"
    found = causes(tmp_path, command, SHARDED.format(size), fsdp_yaml=config)
    assert ("fsdp-full-state-dict-oom" in found) is noted


@pytest.mark.parametrize(
    ("memory", "wrong"), [("64G", True), ("65536", True), ("400G", False), ("0", False)]
)
def test_the_memory_of_a_job(tmp_path: Path, memory: str, wrong: bool) -> None:
    job = JOB.format(f"#SBATCH --gpus-per-node=4 --mem={memory}")
    found = causes(tmp_path, "sbatch four.sbatch", WHOLE, four_sbatch=job)
    assert ("every-rank-loads-full-model" in found) is wrong


@pytest.mark.parametrize(
    ("line", "noted"),
    [
        ("", True),
        ("#SBATCH --gres=gpu:4", False),
        ("#SBATCH --gpus=4", False),
        ("#SBATCH --partition=gpu4", False),
        ("#SBATCH --exclusive", False),
    ],
)
def test_a_job_without_gpus(tmp_path: Path, line: str, noted: bool) -> None:
    found = told(tmp_path, "sbatch four.sbatch", four_sbatch=JOB.format(line))
    assert any("asks for no GPU" in one.because for one in found) is noted


@pytest.mark.parametrize(
    ("kind", "pods", "limit", "noted"),
    [
        ("Job", 2, "", True),
        ("Job", 2, "backoffLimit: 3", True),
        ("Job", 2, "backoffLimit: 0", False),
        ("Job", 1, "", False),
    ],
)
def test_a_pod_that_begins_again_alone(
    tmp_path: Path, kind: str, pods: int, limit: str, noted: bool
) -> None:
    job = PODS.format(kind=kind, pods=pods, limit=limit, gpus=8, more="rdma/hca: 1,")
    found = told(tmp_path, "kubectl apply -f job.yaml", job_yaml=job)
    assert any("starts a failed pod again" in one.because for one in found) is noted


@pytest.mark.parametrize(
    ("pods", "gpus", "more", "noted"),
    [
        (2, 8, "", True),
        (2, 8, "rdma/hca: 1,", False),
        (2, 8, "vpc.amazonaws.com/efa: 4,", False),
        (1, 8, "", False),
        (2, 1, "", False),
    ],
)
def test_pods_without_rdma(tmp_path: Path, pods: int, gpus: int, more: str, noted: bool) -> None:
    job = PODS.format(kind="Job", pods=pods, limit="backoffLimit: 0", gpus=gpus, more=more)
    found = told(tmp_path, "kubectl apply -f job.yaml", job_yaml=job)
    assert ("rdma-not-used-tcp-fallback" in {one.cause for one in found}) is noted


@pytest.mark.parametrize(
    ("options", "size", "cause"),
    [
        ("split_batches=True", 30, "launch-config-invalid"),
        ("split_batches=True", 32, ""),
        ("", 30, ""),
        ("even_batches=False", 32, "uneven-inputs-per-rank"),
        ("even_batches=True", 32, ""),
    ],
)
def test_batches_of_accelerate(tmp_path: Path, options: str, size: int, cause: str) -> None:
    given = f"dataloader_config=DataLoaderConfiguration({options})"
    command = "accelerate launch --num_processes 4 train.py"
    found = causes(tmp_path, command, SPLIT.format(given, size))
    wanted = {"launch-config-invalid", "uneven-inputs-per-rank"}
    assert wanted & {*found} == ({cause} if cause else set())


@pytest.mark.parametrize(
    ("command", "config", "size", "told"),
    [
        ("--save_steps 500 --max_steps 20000", FSDP, 7, "40 in all, 28 GB of weights each"),
        ("--max_steps 20000", FSDP, 7, "28 GB of weights each"),
        ("--save_steps 500 --max_steps 20000", TWO_GPUS, 7, "40 in all, 28 GB of weights each"),
    ],
)
def test_the_checkpoints_of_a_run(
    tmp_path: Path, command: str, config: str, size: int, told: str
) -> None:
    line = f"accelerate launch --config_file one.yaml train.py {command}"
    (tmp_path / "train.py").write_text(dedent(SHARDED.format(size)))
    (tmp_path / "one.yaml").write_text(dedent(config))
    assert dict(starts(Evidence([*review(line.split(), tmp_path)])))["checkpoints"] == told


def test_the_weights_that_fsdp_keeps(tmp_path: Path) -> None:
    source = SHARDED.format(7).replace('7b")', '7b", torch_dtype=torch.bfloat16)')
    (tmp_path / "train.py").write_text(dedent(source))
    (tmp_path / "one.yaml").write_text(dedent(FSDP))
    command = ["accelerate", "launch", "--config_file", "one.yaml", "train.py"]
    rows = dict(starts(Evidence([*review(command, tmp_path)])))
    assert rows["checkpoints"] == "28 GB of weights each (FSDP keeps the weights in fp32)"
    plain = ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py"]
    assert dict(starts(Evidence([*review(plain, tmp_path)])))["checkpoints"].startswith("14 GB")


def test_no_checkpoints_of_an_unknown_model(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    command = ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py"]
    assert "checkpoints" not in dict(starts(Evidence([*review(command, tmp_path)])))


def test_the_fix_is_of_the_same_fsdp(tmp_path: Path) -> None:
    source = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from transformers import AutoModelForCausalLM
        model = FSDP(AutoModelForCausalLM.from_pretrained("a/model-72b"), use_orig_params=True)
    """
    found = reviewed(tmp_path, "torchrun --nproc-per-node 8 train.py", source, gpus=8)
    (first,) = [one for one in found if one.cause == "every-rank-loads-full-model"]
    assert "sync_module_states=True" in first.fixes[0].paste
    assert all("fsdp_version" not in fix.paste for fix in first.fixes)
