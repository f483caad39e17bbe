"""Mistakes in a source, each with a sound twin that differs in a line or two."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ddoctor import engine
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Severity
from tests.launched import launch
from tests.script.conftest import Read
from tests.script.sources import ACCELERATE, HEAD, LOADER, SET_UP, STEP, ddp

Twins = tuple[str, str, str]
IN_EPOCHS = "sampler.set_epoch(epoch)"
EVALUATED = LOADER + (
    "val_loader = DataLoader(Images(), sampler=DistributedSampler(Images(), shuffle=False),"
    " num_workers=4)\n"
)
RANK = "rank, world = dist.get_rank(), dist.get_world_size()\n"
STREAM = """
from torch.utils.data import get_worker_info

class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from self.files[{first} :: {parts}]
"""
OF_STREAM = "loader = DataLoader(Stream(), num_workers=4, persistent_workers=True)"
HUB = "from datasets import load_dataset\nfrom datasets.distributed import split_dataset_by_node\n"
STREAMED = 'data = load_dataset("parquet", data_files=files, streaming=True)\n'
OF_HUB = "loader = DataLoader(data, num_workers=4, persistent_workers=True)"
SEEDED = """
import random
import numpy as np

def seed_worker(worker):
    np.random.seed({seed})
    random.seed({seed})
"""
OF_SEEDED = LOADER.replace("num_workers", "worker_init_fn=seed_worker, num_workers")
BAD = "if not torch.isfinite(loss):\n    {}\nloss.backward()"
DIVIDED = "accelerator.backward(loss / args.accumulation)"
BY_HAND = (
    ACCELERATE.replace("gradient_accumulation_steps=4", "")
    .replace("with accelerator.accumulate(model):", "with torch.autocast('cuda'):")
    .replace("accelerator.backward(loss)", "accelerator.backward(loss / 4)")
    .replace(
        "                optimizer.step()\n                optimizer.zero_grad()\n",
        "                if (step + 1) % 4 == 0:\n"
        "                    optimizer.step()\n                    optimizer.zero_grad()\n",
    )
)
SCHEDULED = ACCELERATE.replace(
    "    for epoch",
    "    steps = {}\n"
    "    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)\n"
    "    scheduler = accelerator.prepare(scheduler)\n    for epoch",
    1,
).replace("optimizer.step()\n", "optimizer.step()\n                scheduler.step()\n")
FSDP = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModelForCausalLM
"""
FILLED = """
def load(rank):
    if rank == 0:
        return AutoModelForCausalLM.from_pretrained("a/b")
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)

def empty(module):
    module.to_empty(device="cuda", recurse=False)
"""
WHOLE = 'model = AutoModelForCausalLM.from_pretrained("a/code-{}b", torch_dtype=torch.bfloat16)\n'
SHARDED = SET_UP.replace("DDP(Net().to(local_rank))", "FSDP({})")
DEVICE = 'device = torch.device("cuda:0")\n'
ON_ONE = (
    f"{DEVICE}dist.init_process_group('nccl')\nmodel = DDP(Net().to(device))\ndata = Images()\n"
)
EARLY = "NAME = torch.cuda.get_device_name()\n"
LATE = 'def main(gpus):\n    os.environ["CUDA_VISIBLE_DEVICES"] = gpus\n'

TWINS: Mapping[str, Twins] = {
    "set_epoch once": (
        "missing-set-epoch",
        ddp(loader=f"{LOADER}sampler.set_epoch(0)\n", each_epoch=""),
        ddp(loader=f"{LOADER}sampler.set_epoch(0)\n"),
    ),
    "deepspeed and no set_epoch": (
        "missing-set-epoch",
        ddp(head="import deepspeed", each_epoch=""),
        ddp(head="import deepspeed"),
    ),
    "a stream that only workers share": (
        "iterable-dataset-not-sharded",
        ddp(
            head=STREAM.format(first="info.id", parts="info.num_workers"),
            loader=OF_STREAM,
            each_epoch="",
        ),
        ddp(
            head=STREAM.format(
                first="rank * info.num_workers + info.id", parts="world * info.num_workers"
            ),
            loader=OF_STREAM,
            each_epoch="",
        ),
    ),
    "a stream of the hub": (
        "iterable-dataset-not-sharded",
        ddp(head=HUB, loader=STREAMED + OF_HUB, each_epoch=""),
        ddp(
            head=HUB,
            loader=f"{STREAMED}data = split_dataset_by_node(data, rank, world)\n{OF_HUB}",
            each_epoch="",
        ),
    ),
    "workers seeded alike": (
        "identical-rng-across-workers",
        ddp(head=SEEDED.format(seed=1234), loader=OF_SEEDED),
        ddp(head=SEEDED.format(seed="1234 + worker"), loader=OF_SEEDED),
    ),
    "a step that one rank leaves": (
        "rank-dependent-control-flow",
        ddp(step=STEP.replace("loss.backward()", BAD.format("continue"))),
        ddp(
            step=STEP.replace("loss.backward()", "dist.all_reduce(loss)\n" + BAD.format("continue"))
        ),
    ),
    "a script that ends": (
        "rank-dependent-control-flow",
        ddp(step=STEP.replace("loss.backward()", BAD.format("continue"))),
        ddp(step=STEP.replace("loss.backward()", BAD.format("raise ValueError(loss)"))),
    ),
    "an evaluation of a part": (
        "per-rank-metrics-or-logging",
        ddp(loader=EVALUATED),
        ddp(loader=EVALUATED, epoch="dist.all_reduce(counts)"),
    ),
    "an evaluation of a part, by a library": (
        "per-rank-metrics-or-logging",
        ddp(loader=EVALUATED),
        ddp(head="import torchmetrics", loader=EVALUATED),
    ),
    "parts of different sizes": (
        "uneven-inputs-per-rank",
        ddp(
            set_up=f"{SET_UP}{RANK}data = load(files[rank::world])\n",
            loader="loader = DataLoader(data, num_workers=4, persistent_workers=True)",
            each_epoch="",
        ),
        ddp(
            set_up=f"{SET_UP}{RANK}data = load(files[rank:len(files) // world * world:world])\n",
            loader="loader = DataLoader(data, num_workers=4, persistent_workers=True)",
            each_epoch="",
        ),
    ),
    "a sampler by the number of the host": (
        "duplicate-data-across-ranks",
        ddp(loader=LOADER.replace("Sampler(data)", "Sampler(data, world_size, node_rank)")),
        ddp(loader=LOADER.replace("Sampler(data)", "Sampler(data, world_size, rank)")),
    ),
    "a loader that accelerate does not know": (
        "duplicate-data-across-ranks",
        ACCELERATE.replace(
            "model, optimizer, loader = accelerator.prepare(net(), adam(), loader)",
            "model, optimizer = accelerator.prepare(net(), adam())",
        ),
        ACCELERATE,
    ),
    "accelerate divides as well": (
        "grad-accum-loss-scaling",
        ACCELERATE.replace("accelerator.backward(loss)", DIVIDED),
        ACCELERATE.replace("accelerator.backward(loss)", "accelerator.backward(loss / scale)"),
    ),
    "deepspeed divides as well": (
        "grad-accum-loss-scaling",
        ddp(head="import deepspeed", step="engine.backward(loss / accum_steps)\nengine.step()"),
        ddp(head="import deepspeed", step="engine.backward(loss)\nengine.step()"),
    ),
    "accumulated by hand": (
        "gradient-sync-every-microstep",
        BY_HAND,
        ACCELERATE,
    ),
    "accumulated by hand, held back": (
        "gradient-sync-every-microstep",
        BY_HAND,
        BY_HAND.replace("torch.autocast('cuda')", "accelerator.no_sync(model)"),
    ),
    "a schedule of one rank's batches": (
        "accelerate-scheduler-steps-n-times",
        SCHEDULED.format("len(loader) * args.epochs"),
        SCHEDULED.format("len(loader) * accelerator.num_processes * args.epochs"),
    ),
    "weights that nothing sends": (
        "fsdp-ram-efficient-random-weights",
        ddp(head=FSDP + FILLED, set_up=SHARDED.format("load(rank), param_init_fn=empty")),
        ddp(
            head=FSDP + FILLED,
            set_up=SHARDED.format("load(rank), param_init_fn=empty, sync_module_states=True"),
        ),
    ),
    "every rank loads a large model": (
        "every-rank-loads-full-model",
        ddp(head=FSDP + WHOLE.format(33), set_up=SHARDED.format("model")),
        ddp(head=FSDP + WHOLE.format(1.5), set_up=SHARDED.format("model")),
    ),
    "one GPU for all": (
        "wrong-device-binding",
        ddp(set_up=ON_ONE),
        ddp(set_up=f'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\n{ON_ONE}'),
    ),
    "chosen after the import": (
        "cuda-visible-devices-set-too-late",
        f"{HEAD}{EARLY}{LATE}\nmain('1')\n",
        f"{HEAD}{LATE}    {EARLY}\nmain('1')\n",
    ),
}


def told(source: str, script: Read, *settings: Setting) -> Mapping[str, Finding]:
    starts = launch("torchrun", "train.py", {"ranks-per-host": "8", "hosts": "1"})
    whole = Launch(
        command=starts.command,
        launcher="torchrun",
        script="train.py",
        settings=(*starts.settings, *settings),
    )
    report = engine.examine(Evidence([whole, script(source)]), "doctor")
    assert report.crashed == ()
    return {one.cause: one for one in report.findings}


@pytest.mark.parametrize("name", TWINS)
def test_the_mistake_and_its_twin(script: Read, name: str) -> None:
    cause, sick, sound = TWINS[name]
    assert cause in told(sick, script)
    found = told(sound, script)
    assert cause not in found
    assert all(one.severity is Severity.NOTE for one in found.values())


def test_a_gpu_that_the_launch_chooses_for_each_rank(script: Read) -> None:
    by_rank = Setting(name="env.CUDA_VISIBLE_DEVICES", value="$SLURM_LOCALID", file="one.sh")
    assert "wrong-device-binding" not in told(ddp(set_up=ON_ONE), script, by_rank)
