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
from tests.script.sources import ACCELERATE, HEAD, LIGHTNING, LOADER, SET_UP, STEP, ddp

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
CHOSEN = LOADER.replace("DistributedSampler(", "Sampler(").replace(
    "sampler =", "Sampler = DistributedSampler if args.many else RandomSampler\nsampler =", 1
)
MET = "for kind in {}:\n    totals[kind] = totals.get(kind, 0) + 1\n"
REDUCED = "for kind, count in totals.items():\n    dist.all_reduce(torch.tensor(count))\n"
SIDE = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 3)
        self.side = torch.nn.Linear(3, 3)

    def forward(self, x):
        {}
"""
IGNORES = STEP.replace("loss = model(batch).sum()", "out, _ = model(batch)\nloss = out.sum()")
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

DRAWN = """
import numpy as np

class Drawn(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def _moved(self, item):
        return item + {}

    def __getitem__(self, index):
        return self._moved(self.images[index])
"""
WITHOUT = SET_UP.replace("data = Images()\n", "")
OF_DRAWN = f"data = Drawn()\n{LOADER}"
BY_DIVISION = (
    "dist.init_process_group('nccl')\nrank = dist.get_rank()\n"
    "local = rank {} torch.cuda.device_count()\ntorch.cuda.set_device(local)\n"
    "model = DDP(Net().to(local))\ndata = Images()\n"
)
POLICY = """
import functools
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={{{}}})
"""
GATHERED = (
    "rank = dist.get_rank()\n{}\n"
    "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):\n"
    "        state = model.state_dict()"
)
SETS_UP = "\ndef init():\n    torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
CHOOSES = "os.environ['CUDA_VISIBLE_DEVICES'] = '2,3'"
TRAINED = """
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments(
    "out", gradient_checkpointing=True, ddp_find_unused_parameters=True,
    gradient_checkpointing_kwargs={})
Trainer(model=model, args=arguments).train()
"""

ACCUMULATOR = """
class Accumulator:
    def __init__(self, model, every):
        self.model, self.every, self.count = model, every, 0

    def __call__(self, batch):
        self.count += 1
        due = self.count % self.every == 0
        loss = self.model(batch).sum() / self.every
        loss.backward()
        if due:
            self.optimizer.step()
            self.optimizer.zero_grad()
"""
SHARED = """
from torch.utils.checkpoint import checkpoint

class Net(torch.nn.Module):
    def forward(self, x):
        for _ in range(12):
            x = checkpoint(self.block, x, {})
        return x
"""
VALIDATES = """
class Checked(Module):
    def validation_step(self, batch, index):
        loss = self(batch)
        self.log("val_loss", loss{})

"""

WORLD = """
class World:
    def __init__(self):
        self.n = dist.get_rank()

    @property
    def first(self):
        return self.n == 0

    @property
    def boss(self):
        return self.rank == 0

    @property
    def ready(self):
        return self.step > 0

world = World()
"""
SAVED = "if {}:\n    torch.save(model.state_dict(), 'model.pt')"
RESUMED = "state = torch.load(path, map_location='{}')\nmodel.load_state_dict(state)"
SPAWNED = f"""{HEAD}
import torch.multiprocessing as mp

def work(rank):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size={{1}})
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, nprocs={{0}})
"""

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
        ddp(head=SEEDED.format(seed="1234 + worker + dist.get_rank()"), loader=OF_SEEDED),
    ),
    "a layer that forward never names": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("return self.body(x)")),
        ddp(head=SIDE.format("return self.side(self.body(x))")),
    ),
    "a layer that replaces one of another module": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("return self.body(x)")),
        ddp(head=SIDE.format("return self.body(x)").replace("self.side", "self.body.side")),
    ),
    "a layer whose result is dropped": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("more = self.side(x)\n        return self.body(x)")),
        ddp(head=SIDE.format("more = self.side(x)\n        return self.body(x) + more")),
    ),
    "a result that the loop ignores": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("return self.body(x), self.side(x)"), step=IGNORES),
        ddp(
            head=SIDE.format("return self.body(x), self.side(x)"),
            step=IGNORES.replace("_", "more").replace("out.sum()", "(out + more).sum()"),
        ),
    ),
    "a layer that is frozen": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("return self.body(x)")),
        ddp(
            head=SIDE.format("return self.body(x)"),
            set_up=SET_UP.replace("DDP(Net()", "DDP(Net().requires_grad_(False)"),
        ),
    ),
    "a layer that DDP may leave out": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("return self.body(x)")),
        ddp(
            head=SIDE.format("return self.body(x)"),
            set_up=SET_UP.replace("(local_rank))", "(local_rank), find_unused_parameters=True)"),
        ),
    ),
    "workers of all ranks with equal seeds": (
        "identical-rng-across-workers",
        ddp(head="BASE = 42\n" + SEEDED.format(seed="BASE + worker"), loader=OF_SEEDED),
        ddp(head=SEEDED.format(seed="torch.initial_seed() % 2**32"), loader=OF_SEEDED),
    ),
    "workers seeded by an option": (
        "identical-rng-across-workers",
        ddp(head=SEEDED.format(seed="args.seed + worker"), loader=OF_SEEDED),
        ddp(
            head=SEEDED.format(seed="args.seed + worker"),
            loader="args.seed += dist.get_rank()\n" + OF_SEEDED,
        ),
    ),
    "a sampler class that the script chooses": (
        "missing-set-epoch",
        ddp(loader=CHOSEN, each_epoch=""),
        ddp(loader=CHOSEN),
    ),
    "GPUs chosen under a test that uses CUDA": (
        "cuda-visible-devices-set-too-late",
        f"{HEAD}if torch.cuda.is_available():\n    {CHOOSES}\n",
        f"{HEAD}if not torch.cuda.is_available():\n    {CHOOSES.replace('2,3', '')}\n",
    ),
    "an import that uses CUDA": (
        "cuda-visible-devices-set-too-late",
        f"{HEAD}import bitsandbytes\n{CHOOSES}\n",
        f"{HEAD}{CHOOSES}\nimport bitsandbytes\n",
    ),
    "metrics by the data that a rank has met": (
        "rank-dependent-control-flow",
        ddp(before="totals = {}", step=STEP + MET.format('batch["kind"]'), epoch=REDUCED),
        ddp(before="totals = {}", step=STEP + MET.format("KINDS"), epoch=REDUCED),
    ),
    "metrics whose names are agreed on": (
        "rank-dependent-control-flow",
        ddp(before="totals = {}", step=STEP + MET.format('batch["kind"]'), epoch=REDUCED),
        ddp(
            before="totals = {}",
            step=STEP + MET.format('batch["kind"]'),
            epoch="names = [None] * 8\ndist.all_gather_object(names, sorted(totals))\n"
            + REDUCED.replace("totals.items()", "united(names, totals)"),
        ),
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
    "a sampler for one rank": (
        "duplicate-data-across-ranks",
        ddp(loader=LOADER.replace("Sampler(data)", "Sampler(data, num_replicas=1, rank=0)")),
        ddp(loader=LOADER.replace("Sampler(data)", "Sampler(data, num_replicas=world, rank=rank)")),
    ),
    "a generator that a helper uses": (
        "identical-rng-across-workers",
        ddp(head=DRAWN.format("self.rng.normal()"), set_up=WITHOUT, loader=OF_DRAWN),
        ddp(head=DRAWN.format("np.random.normal()"), set_up=WITHOUT, loader=OF_DRAWN),
    ),
    "the number of the host as a GPU": (
        "wrong-device-binding",
        ddp(set_up=BY_DIVISION.format("//")),
        ddp(set_up=BY_DIVISION.format("%")),
    ),
    "all ranks delete a folder": (
        "shared-filesystem-race",
        ddp(before="shutil.rmtree(cache)", head="import shutil"),
        ddp(before="if dist.get_rank() == 0:\n    shutil.rmtree(cache)", head="import shutil"),
    ),
    "all ranks delete what may be gone": (
        "shared-filesystem-race",
        ddp(before="shutil.rmtree(cache)", head="import shutil"),
        ddp(before="shutil.rmtree(cache, ignore_errors=True)", head="import shutil"),
    ),
    "accumulated by an object": (
        "gradient-sync-every-microstep",
        ddp(head=ACCUMULATOR, before="step = Accumulator(model, 4)", step="step(batch)"),
        ddp(
            head=ACCUMULATOR.replace("        loss =", "        with self.model.no_sync(): loss ="),
            before="step = Accumulator(model, 4)",
            step="step(batch)",
        ),
    ),
    "a shared block": (
        "activation-checkpoint-reentrant",
        ddp(head=SHARED.format("use_reentrant=True")),
        ddp(head=SHARED.format("use_reentrant=False")),
    ),
    "a mean that Lightning does not reduce": (
        "per-rank-metrics-or-logging",
        LIGHTNING.replace("trainer =", VALIDATES.format("") + "trainer =", 1),
        LIGHTNING.replace("trainer =", VALIDATES.format(", sync_dist=True") + "trainer =", 1),
    ),
    "a metric that Lightning reduces": (
        "per-rank-metrics-or-logging",
        LIGHTNING.replace("trainer =", VALIDATES.format("") + "trainer =", 1),
        LIGHTNING.replace(
            "trainer =", VALIDATES.format("").replace("loss)", "self.accuracy)") + "trainer =", 1
        ),
    ),
    "set_epoch by its name": (
        "missing-set-epoch",
        ddp(each_epoch=""),
        ddp(each_epoch='getattr(sampler, "set_epoch")(epoch)'),
    ),
    "a file that one rank writes, by a property": (
        "shared-filesystem-race",
        ddp(head=WORLD, epoch=SAVED.format("world.ready")),
        ddp(head=WORLD, epoch=SAVED.format("world.boss")),
    ),
    "a file that one rank writes, by a property of another name": (
        "shared-filesystem-race",
        ddp(head=WORLD, epoch=SAVED.format("world.ready")),
        ddp(head=WORLD, epoch=SAVED.format("world.first")),
    ),
    "a file that one rank writes, by another name": (
        "shared-filesystem-race",
        ddp(set_up=f"{SET_UP}me = int(sys.argv[1])\n", epoch=SAVED.format("me == 0")),
        ddp(set_up=f"{SET_UP}me = dist.get_rank()\n", epoch=SAVED.format("me == 0")),
    ),
    "a checkpoint onto the first GPU": (
        "gpu0-extra-memory",
        ddp(before=RESUMED.format("cuda:0")),
        ddp(before=RESUMED.format("cpu")),
    ),
    "fewer processes than the group waits for": (
        "world-size-mismatch",
        SPAWNED.format(4, 8),
        SPAWNED.format(4, 4),
    ),
    "the whole model as a unit": (
        "fsdp-wrap-policy-wrong",
        ddp(head=FSDP + POLICY.format("LlamaModel"), set_up=SHARDED.format("net, policy")),
        ddp(head=FSDP + POLICY.format("LlamaDecoderLayer"), set_up=SHARDED.format("net, policy")),
    ),
    "a gather of FSDP on one rank": (
        "rank0-only-collective",
        ddp(head=FSDP, set_up=SHARDED.format("net"), epoch=GATHERED.format("if rank == 0:")),
        ddp(head=FSDP, set_up=SHARDED.format("net"), epoch=GATHERED.format("if True:")),
    ),
    "chosen after a function that uses CUDA": (
        "cuda-visible-devices-set-too-late",
        f"{HEAD}{SETS_UP}\ndef main():\n    init()\n    {CHOOSES}\n\nmain()\n",
        f"{HEAD}{SETS_UP}\ndef main():\n    {CHOOSES}\n    init()\n\nmain()\n",
    ),
    "re-entrant with the search for unused parameters": (
        "activation-checkpoint-reentrant",
        TRAINED.format("{'use_reentrant': True}"),
        TRAINED.format("{'use_reentrant': False}"),
    ),
    "a schedule of one rank's batches, in two lines": (
        "accelerate-scheduler-steps-n-times",
        SCHEDULED.format("each * args.epochs").replace(
            "    steps =", "    each = len(loader)\n    steps ="
        ),
        SCHEDULED.format("each * args.epochs").replace(
            "    steps =", "    each = len(loader) * accelerator.num_processes\n    steps ="
        ),
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


@pytest.mark.parametrize(("given", "missing"), [("0", True), ("8", False)])
def test_the_workers_that_the_launch_gives(script: Read, given: str, missing: bool) -> None:
    source = ddp(loader=LOADER.replace("num_workers=4", "num_workers=args.workers"))
    workers = Setting(name="arg.workers", value=given, file="train.py", line=3)
    assert ("dataloader-bottleneck" in told(source, script, workers)) is missing


@pytest.mark.parametrize(("line", "idle"), [("0,1,2,3", True), ("0", False), ("$GPU", False)])
def test_gpus_that_one_process_gets(script: Read, line: str, idle: bool) -> None:
    settings = {"ranks": "1", "hosts": "1", "env.CUDA_VISIBLE_DEVICES": line}
    # The process group may be made by hand.
    source = ddp(set_up=SET_UP.replace('"nccl"', '"nccl", rank=0, world_size=1'))
    report = engine.examine(
        Evidence([launch("python", "train.py", settings), script(source)]), "doctor"
    )
    causes = {one.cause for one in report.findings}
    assert ("not-launched-distributed" in causes) is idle


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("'no'", True),
        ("'fp16'", True),
        ("args.precision", True),
        ("'fp16' if args.fp16 else 'no'", True),
        ("'bf16'", False),
        ("None", False),
        ("choose()", False),
    ],
)
def test_a_precision_that_the_script_decides(script: Read, given: str, wrong: bool) -> None:
    settings = {"ranks": "2", "hosts": "1", "precision": "bf16", "arg.precision": "no"}
    source = ACCELERATE.replace("steps=4", f"steps=4, mixed_precision={given}")
    evidence = Evidence([launch("accelerate", "train.py", settings), script(source)])
    causes = {one.cause for one in engine.examine(evidence, "doctor").findings}
    assert ("mixed-precision-overridden" in causes) is wrong
