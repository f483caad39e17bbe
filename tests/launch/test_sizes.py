"""What a launch asks for: memory for a model of a known size, GPUs, RDMA devices, batches."""

from __future__ import annotations

import json
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
BY_ZERO = """
    import deepspeed
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained("a/model-70b", dtype="bfloat16")
    engine, _, loader, _ = deepspeed.initialize(model=model, config="ds.json")
    for batch in loader:
        loss = engine(batch).loss
        engine.backward(loss)
        engine.step()
"""
ZERO = """{{
    "bf16": {{"enabled": true}},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4}}}},
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {{"stage": {stage}, "offload_optimizer": {{"device": "{device}"}}}}
}}"""
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
    ("asked", "size", "wrong"),
    [
        ("--gres=gpu:a100:8", 13, True),
        ("--gpus-per-node=h100:8", 13, True),
        ("--gres=gpu:a100_80gb:8", 13, True),
        ("--gpus=mi300x:8", 13, False),
        ("--gres=gpu:a100:8", 7, False),
        ("--gres=gpu:a100_40gb:8", 7, True),
        ("--gres=gpu:rtx4090:8", 7, True),
        ("--gres=gpu:8", 13, False),
    ],
)
def test_the_gpus_of_a_job(tmp_path: Path, asked: str, size: int, wrong: bool) -> None:
    source = DDP.format(size=size, more="", wrap="DistributedDataParallel", optimizer="AdamW")
    job = JOB.format(f"#SBATCH {asked}")
    found = causes(tmp_path, "sbatch four.sbatch", source, four_sbatch=job)
    assert ("model-does-not-fit" in found) is wrong


@pytest.mark.parametrize(
    ("added", "wrong"),
    [
        ("", True),
        ("for one in model.parameters(): one.requires_grad = False", False),
        ("from peft import get_peft_model\nmodel = get_peft_model(model, config)", False),
        ("from torch.distributed.fsdp import CPUOffloadPolicy\nCPUOffloadPolicy()", False),
    ],
)
def test_not_all_weights_are_trained(tmp_path: Path, added: str, wrong: bool) -> None:
    source = dedent(
        DDP.format(size=70, more="", wrap="DistributedDataParallel", optimizer="AdamW")
    ).replace("optimizer =", f"{added}\noptimizer =")
    command = "torchrun --standalone --nproc-per-node 8 train.py"
    assert ("model-does-not-fit" in causes(tmp_path, command, source, gpus=0)) is wrong


@pytest.mark.parametrize(
    ("stage", "ranks", "offload", "wrong"),
    [
        (1, 8, "none", True),
        (2, 8, "none", True),
        (3, 8, "none", True),
        (3, 16, "none", False),
        (3, 8, "cpu", False),
    ],
)
def test_what_deepspeed_shards(
    tmp_path: Path, stage: int, ranks: int, offload: str, wrong: bool
) -> None:
    """A model of 70 billion parameters takes 1,043 GiB in all, on GPUs of 80."""
    settings = ZERO.format(stage=stage, device=offload)
    job = f"""
        #!/bin/bash
        #SBATCH --nodes={ranks // 8} --gres=gpu:h100:8
        deepspeed --num_nodes {ranks // 8} --num_gpus 8 train.py --deepspeed_config ds.json
    """
    found = causes(tmp_path, "sbatch job.sbatch", BY_ZERO, ds_json=settings, job_sbatch=job)
    assert ("model-does-not-fit" in found) is wrong


@pytest.mark.parametrize(
    ("memory", "hosts", "device", "wrong"),
    [
        ("500G", 1, "cpu", True),
        ("1000G", 1, "cpu", False),
        ("500G", 2, "cpu", False),
        ("500G", 1, "none", False),
        ("0", 1, "cpu", False),
    ],
)
def test_the_states_on_the_host(
    tmp_path: Path, memory: str, hosts: int, device: str, wrong: bool
) -> None:
    """Those of 70 billion parameters take 782 GiB."""
    job = f"""
        #!/bin/bash
        #SBATCH --nodes={hosts} --gres=gpu:h100:2 --mem={memory}
        deepspeed --num_nodes {hosts} --num_gpus 2 train.py --deepspeed_config ds.json
    """
    settings = ZERO.format(stage=3, device=device)
    found = causes(tmp_path, "sbatch job.sbatch", BY_ZERO, ds_json=settings, job_sbatch=job)
    assert ("host-ram-oom" in found) is wrong


@pytest.mark.parametrize(
    ("limit", "size", "more", "wrong"),
    [
        ("64Gi", 7, "", True),
        ("400Gi", 7, "", False),
        ("64Gi", 1, "", False),
        ("64Gi", 7, ', device_map={"": rank}', False),
    ],
)
def test_the_memory_of_a_pod(tmp_path: Path, limit: str, size: int, more: str, wrong: bool) -> None:
    source = f"""
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained("a/model-{size}b"{more})
        model = DistributedDataParallel(model.cuda())
    """
    pods = PODS.format(kind="Job", pods=1, limit="", gpus=8, more="").replace("900Gi", limit)
    found = causes(tmp_path, "kubectl apply -f job.yaml", source, job_yaml=pods)
    assert ("every-rank-loads-full-model" in found) is wrong


@pytest.mark.parametrize(
    ("label", "wrong"),
    [
        ("nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB", True),
        ("nvidia.com/gpu.product: NVIDIA-H200", False),
        ("disk: a100", False),
    ],
)
def test_the_gpus_of_a_pod(tmp_path: Path, label: str, wrong: bool) -> None:
    source = DDP.format(size=13, more="", wrap="DistributedDataParallel", optimizer="AdamW")
    pods = PODS.format(kind="Job", pods=1, limit="", gpus=8, more="")
    pods = pods.replace("containers:", f"nodeSelector: {{{label}}}\n          containers:")
    found = causes(tmp_path, "kubectl apply -f job.yaml", source, job_yaml=pods)
    assert ("model-does-not-fit" in found) is wrong


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ("", True),
        ("--use_peft", False),
        ("--load_in_4bit", False),
        ("--optim adafactor", False),
        ("--use_peft false", True),
    ],
)
def test_a_program_that_trains_a_model_of_the_hub(
    tmp_path: Path, options: str, wrong: bool
) -> None:
    cached = tmp_path / "cache" / "hub" / "models--a--large"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("1234abcd")
    (cached / "snapshots" / "1234abcd").mkdir(parents=True)
    config = {
        **{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672},
        **{"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8},
        **{"vocab_size": 128256, "tie_word_embeddings": False},
    }
    (cached / "snapshots" / "1234abcd" / "config.json").write_text(json.dumps(config))
    command = f"trl sft --accelerate_config one.yaml --model_name_or_path a/large {options}"
    found = causes(tmp_path, command, "", gpus=0, one_yaml=TWO_GPUS)
    assert ("model-does-not-fit" in found) is wrong


def test_the_strategies_for_a_model(tmp_path: Path) -> None:
    source = DDP.format(size=13, more="", wrap="DistributedDataParallel", optimizer="AdamW")
    (tmp_path / "train.py").write_text(dedent(source))
    command = ["torchrun", "--standalone", "--nproc-per-node", "8", "train.py"]
    rows = dict(starts(Evidence([*review(command, tmp_path)])))
    assert rows["model"].startswith("13 billion parameters; weights, gradients and AdamW's states")
    assert rows["model"].endswith("DDP 97, ZeRO-1 54, ZeRO-2 33, ZeRO-3 or FSDP 12")


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
        ("even_batches=False", "32, drop_last=True", ""),
    ],
)
def test_batches_of_accelerate(tmp_path: Path, options: str, size: int | str, cause: str) -> None:
    given = f"dataloader_config=DataLoaderConfiguration({options})"
    command = "accelerate launch --num_processes 4 train.py"
    found = causes(tmp_path, command, SPLIT.format(given, size))
    wanted = {"launch-config-invalid", "uneven-inputs-per-rank"}
    assert wanted & {*found} == ({cause} if cause else set())


def test_batches_of_several_accelerators(tmp_path: Path) -> None:
    given = "dataloader_config=DataLoaderConfiguration(split_batches=True)"
    command = "accelerate launch --num_processes 4 train.py"
    source = SPLIT.format(given, 30)
    assert "launch-config-invalid" in causes(tmp_path, command, source)
    other = f"{source}\n    plain = Accelerator()\n"
    assert "launch-config-invalid" not in causes(tmp_path, command, other)


@pytest.mark.parametrize(
    ("command", "config", "size", "told"),
    [
        (
            "--save_steps 500 --max_steps 20000",
            FSDP,
            7,
            "40 in all, 28 GB of weights each, 1,120 GB written in all",
        ),
        ("--max_steps 20000", FSDP, 7, "28 GB of weights each"),
        (
            "--save_steps 500 --max_steps 20000",
            TWO_GPUS,
            7,
            "40 in all, 28 GB of weights each, 1,120 GB written in all",
        ),
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
