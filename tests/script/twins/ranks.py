"""Mistakes in what each rank does, and on which device."""

from __future__ import annotations

from tests.script.sources import ACCELERATE, HEAD, LIGHTNING, LOADER, SET_UP, STEP, ddp
from tests.script.twins.parts import FSDP, ON_ONE, SHARDED

COUNTS = """\
with torch.no_grad():
    for batch in val_loader:
        counts += right(model(batch))"""
EVALUATED = LOADER + (
    "val_loader = DataLoader(Images(), sampler=DistributedSampler(Images(), shuffle=False),"
    " num_workers=4)\n"
)
DOWNLOADS = ddp(
    head="from torchvision import datasets",
    set_up=SET_UP.replace("Images()", "datasets.DTD(root, download={})"),
)
MET = "for kind in {}:\n    totals[kind] = totals.get(kind, 0) + 1\n"
REDUCED = "for kind, count in totals.items():\n    dist.all_reduce(torch.tensor(count))\n"
COUNTED = """
def counted(batch):
    found = {{}}
    for row in batch:
        kind = {}
        found[kind] = found.get(kind, 0) + 1
    return found
"""
OF_COUNTED = "totals = counted(batch)\n" + REDUCED
ANY_RANK = """
def anyone(flag):
    flag = flag.float()
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())
"""
ALONE = """
import functools

def leader(function):
    @functools.wraps(function)
    def inner(*given):
        if dist.get_rank() == 0:
            return function(*given)
    return inner

{}
def keep(name):
    torch.save(model.state_dict(), folder / name)
"""
SHARES = "if {}:\n    dist.all_reduce(total)\n"
WEIGHED = """
class Weighed(torch.nn.Module):
    def share(self, area):
        dist.all_reduce(area)
        return area / dist.get_world_size()

    def forward(self, logits, masks):
        area = masks.mean()
        {}
        if {}:
            self.weight = self.share(area)
        return (self.weight * (logits - masks)).square().mean()
"""
BAD = "if not torch.isfinite(loss):\n    {}\nloss.backward()"
EARLY = "NAME = torch.cuda.get_device_name()\n"
LATE = 'def main(gpus):\n    os.environ["CUDA_VISIBLE_DEVICES"] = gpus\n'
BY_DIVISION = (
    "dist.init_process_group('nccl')\nrank = dist.get_rank()\n"
    "local = rank {} torch.cuda.device_count()\ntorch.cuda.set_device(local)\n"
    "model = DDP(Net().to(local))\ndata = Images()\n"
)
BY_SUBTRACTION = BY_DIVISION.replace(
    "{} torch.cuda.device_count()", "- per_host * (rank // per_host)"
)
GATHERED = (
    "rank = dist.get_rank()\n{}\n"
    "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):\n"
    "        state = model.state_dict()"
)
SETS_UP = "\ndef init():\n    torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
EIGHT = "0,1,2,3,4,5,6,7"
CHOOSES = f"os.environ['CUDA_VISIBLE_DEVICES'] = '{EIGHT}'"
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
PREPARED = """
def packed(path):
    if not os.path.isdir(path):
        load_dataset("json")["train"].map(tokens).save_to_disk(path)
    return path
"""
IN_TURN = "with accelerator.main_process_first():\n        packed(args.data)\n    for epoch"
STOPPER = """
def measured(model, loader):
    return sum(model(batch).mean().item() for batch in loader)
"""
STOPS_ALONE = (
    "value = measured(model, val_loader)\n{}early_stop.update(value)\n"
    "if early_stop.should_stop:\n    break\n"
)
OF_ONE = """
@{}
def total(model):
    norm = sum(one.norm() for one in model.parameters())
    dist.all_reduce(norm)
    print(norm)
"""
EARLY_LOAD = "state = torch.load('last.pt', map_location='cuda')\n"
GATHERS = """
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
{}
if dist.get_rank() == 0:
    state = get_model_state_dict(model, options=options)
"""
SHARDS = """
from torch.distributed.fsdp import fully_shard

def sharded(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)
"""
ADAM = "optimizer = torch.optim.AdamW(net.parameters())"
BUILT = (
    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\ndist.init_process_group("nccl")\n'
    "data = Images()\nnet = Net().cuda()\n{1}\nmodel = sharded(net)\n{0}\n"
)
SCORES = """
from torchmetrics.functional import auroc

@torch.inference_mode()
def scored(model, loader):
    found = []
    for batch in loader:
        found.append(model(batch.cuda()))
    return auroc(torch.cat(found), labels)
"""
ROUNDS = LOADER + (
    "val_loader = DataLoader(Images(), sampler=DistributedSampler(Images(), shuffle=False),"
    " num_workers=4)\nstopper = Stopper()\n"
)
SHOWN = "shown = value.clone()\ndist.all_reduce(shown)\n"
STOPPER_OF_RANKS = """
class Stopper:
    def stops(self, value):
        {}return value > 3
"""
OF_RAY = """
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

class Plateau:
    def update(self, value):
        self.best, self.bad = min(self.best, value), 0 if value < self.best else self.bad + 1
        return self.bad > 5

def loop(options):
    model = prepare_model(net())
    loader = {loader}
    plateau, stop = Plateau(), False
    for epoch in range(options["epochs"]):
        loader.sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            loss = model(batch).mean()
            loss.backward()
            optimizer.step()
            if number % 200 == 199:
                value = loss.detach()
                {agrees}
                if plateau.update(value.item()):
                    stop = True
                    break
        if stop:
            break

TorchTrainer(loop).fit()
"""
BY_RAY = "prepare_data_loader(DataLoader(data(), shuffle=True, num_workers=4))"
WHOLE = "DataLoader(data(), num_workers=4)"
MEAN = "dist.all_reduce(value)"

TWINS = {
    "workers of Ray that each stop by themselves": (
        "rank-dependent-control-flow",
        OF_RAY.format(loader=BY_RAY, agrees="pass"),
        OF_RAY.format(loader=BY_RAY, agrees=MEAN),
        OF_RAY.format(loader=WHOLE, agrees="pass"),
        OF_RAY.format(loader=BY_RAY, agrees="pass").replace("if stop:", "if epoch == 5:"),
    ),
    "a collective in a branch that the own batch decides": (
        "rank-dependent-control-flow",
        ddp(step=STEP + SHARES.format("batch.isnan().any()")),
        ddp(
            step=STEP
            + "bad = batch.isnan().any().float()\ndist.all_reduce(bad)\n"
            + SHARES.format("bad.item()")
        ),
        ddp(head=ANY_RANK, step=STEP + SHARES.format("anyone(batch.isnan().any())")),
        ddp(
            step=STEP
            + SHARES.format("batch.isnan().any()")
            + "else:\n    dist.all_reduce(torch.zeros(1))\n"
        ),
        ddp(step=STEP + SHARES.format("batch.dim() == 3")),
        ddp(step=STEP + SHARES.format("total.max() > 100")),
        ddp(step=STEP + SHARES.format("step % 9 == 0 and total.max() > 100")).replace(
            "for batch in loader", "for step, batch in enumerate(loader)"
        ),
        ddp(step=STEP + SHARES.format("batch.isnan().any()").replace("dist.all_reduce", "print")),
    ),
    "a layer that asks the other ranks where its own batch holds something": (
        "rank-dependent-control-flow",
        ddp(head=WEIGHED.format("", "area > 0")),
        ddp(head=WEIGHED.format("", "self.training")),
        ddp(head=WEIGHED.format("", "logits.shape[0] > 1")),
        ddp(head=WEIGHED.format("scale = torch.ones(1)", "len(logits) > 1 and scale.sum() > 0")),
        ddp(head=WEIGHED.format("dist.all_reduce(area)", "area > 0")),
        ddp(head=WEIGHED.format("area = torch.ones(1)", "self.weight.sum() > 0")),
    ),
    "a step that one rank leaves, unless a function asks all": (
        "rank-dependent-control-flow",
        ddp(step=STEP.replace("loss.backward()", BAD.format("continue"))),
        ddp(
            head=ANY_RANK,
            step=STEP.replace(
                "loss.backward()",
                "if anyone(~torch.isfinite(loss)):\n    continue\nloss.backward()",
            ),
        ),
        ddp(
            head=ANY_RANK,
            step=STEP.replace(
                "loss.backward()",
                "bad = anyone(~torch.isfinite(loss))\nif bad:\n    continue\nloss.backward()",
            ),
        ),
    ),
    "a file whose name the only call gives": (
        "shared-filesystem-race",
        ddp(head=ALONE.format(""), epoch='keep("latest.pt")'),
        ddp(head=ALONE.format("@leader"), epoch='keep("latest.pt")'),
        ddp(head=ALONE.format(""), epoch='keep(f"latest-{dist.get_rank()}.pt")'),
        ddp(head=ALONE.format(""), epoch='if dist.get_rank() == 0:\n    keep("latest.pt")'),
    ),
    "a download on all ranks": (
        "shared-filesystem-race",
        DOWNLOADS.format("True"),
        DOWNLOADS.format("False"),
        DOWNLOADS.format("local_rank == 0"),
    ),
    "a dataset that every rank writes": (
        "shared-filesystem-race",
        PREPARED + ACCELERATE.replace("for epoch", "packed(args.data)\n    for epoch", 1),
        PREPARED + ACCELERATE.replace("for epoch", IN_TURN, 1),
    ),
    "an early end by one rank's loss": (
        "rank-dependent-control-flow",
        ddp(head=STOPPER, loader=EVALUATED, epoch=STOPS_ALONE.format("")),
        ddp(head=STOPPER, loader=EVALUATED, epoch=STOPS_ALONE.format("dist.all_reduce(value)\n")),
    ),
    "an early end by a loss that all ranks measure alike": (
        "rank-dependent-control-flow",
        ddp(head=STOPPER, loader=EVALUATED, epoch=STOPS_ALONE.format("")),
        ddp(
            head=STOPPER,
            loader=LOADER + "val_loader = DataLoader(Images(), num_workers=4)\n",
            epoch=STOPS_ALONE.format(""),
        ),
    ),
    "a checkpoint on the current GPU": (
        "gpu0-extra-memory",
        ddp(set_up=EARLY_LOAD + SET_UP + "model.load_state_dict(state)\n"),
        ddp(set_up=SET_UP + EARLY_LOAD + "model.load_state_dict(state)\n"),
    ),
    "GPUs chosen under a test that uses CUDA": (
        "cuda-visible-devices-set-too-late",
        f"{HEAD}if torch.cuda.is_available():\n    {CHOOSES}\n",
        f"{HEAD}if not torch.cuda.is_available():\n    {CHOOSES.replace(EIGHT, '')}\n",
    ),
    "fewer GPUs than ranks": (
        "nproc-exceeds-visible-gpus",
        ddp(head=CHOOSES.replace(EIGHT, "0, 1")),
        ddp(head=CHOOSES),
        ddp(head=f"if args.few:\n    {CHOOSES.replace(EIGHT, '0')}"),
        ddp(head="os.environ['CUDA_VISIBLE_DEVICES'] = args.gpus"),
        f"{HEAD}{CHOOSES.replace(EIGHT, '0')}\ndist.init_process_group('gloo')\n",
        ddp(head="os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']"),
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
    "metrics that a function returns, by the data that a rank has met": (
        "rank-dependent-control-flow",
        ddp(head=COUNTED.format('"long" if len(row) > 9 else "short"'), step=STEP + OF_COUNTED),
        ddp(head=COUNTED.format('"long" if args.long else "short"'), step=STEP + OF_COUNTED),
        ddp(head=COUNTED.format('"all"'), step=STEP + OF_COUNTED),
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
        ddp(loader=EVALUATED, epoch=COUNTS),
        ddp(loader=EVALUATED, epoch=f"{COUNTS}\ndist.all_reduce(counts)"),
        ddp(loader=EVALUATED),
    ),
    "an evaluation of a part, by a library": (
        "per-rank-metrics-or-logging",
        ddp(loader=EVALUATED, epoch=COUNTS),
        ddp(head="import torchmetrics", loader=EVALUATED, epoch=COUNTS),
    ),
    "one GPU for all": (
        "wrong-device-binding",
        ddp(set_up=ON_ONE),
        ddp(set_up=f'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\n{ON_ONE}'),
    ),
    "the number of the host as a GPU": (
        "wrong-device-binding",
        ddp(set_up=BY_DIVISION.format("//")),
        ddp(set_up=BY_DIVISION.format("%")),
    ),
    "the remainder by a subtraction": (
        "wrong-device-binding",
        ddp(set_up=BY_DIVISION.format("//")),
        ddp(set_up=BY_SUBTRACTION),
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
        ddp(
            before="folder = None\nif packed:\n    folder = tempfile.mkdtemp()\nif folder:\n"
            "    shutil.rmtree(folder)",
            head="import shutil, tempfile",
        ),
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
    "chosen after the import": (
        "cuda-visible-devices-set-too-late",
        f"{HEAD}{EARLY}{LATE}\nmain('1')\n",
        f"{HEAD}{LATE}    {EARLY}\nmain('1')\n",
    ),
    "an early end by a value of which a copy is reduced": (
        "rank-dependent-control-flow",
        ddp(head=STOPPER, loader=ROUNDS, epoch=STOPS_ALONE.format(SHOWN)),
        ddp(
            head=STOPPER_OF_RANKS.format("dist.all_reduce(value)\n        "),
            loader=ROUNDS,
            epoch="value = measured(model)\nif stopper.stops(value):\n    break\n",
        ),
        # All ranks count the same steps.
        ddp(
            before="steps = 0",
            step=STEP + "steps += 1\nstop = steps >= args.steps * 2\nif stop:\n    break\n",
            epoch="if stop:\n    break\n",
        ),
    ),
    "a sum in a function that one rank runs": (
        "rank0-only-collective",
        ddp(head=OF_ONE.format("on_main"), epoch="total(model)"),
        ddp(head=OF_ONE.format("timed"), epoch="total(model)"),
        ddp(head=OF_ONE.format("functools.cache"), epoch="total(model)"),
    ),
    "a sum in a function for rank zero only": (
        "rank0-only-collective",
        ddp(head=OF_ONE.format("rank_zero_only"), epoch="total(model)"),
        ddp(head=OF_ONE.format("app.main"), epoch="total(model)"),
    ),
    "a full state by options in a variable": (
        "rank0-only-collective",
        ddp(epoch=GATHERS.format("options = StateDictOptions(full_state_dict=True)")),
        ddp(epoch=GATHERS.format("options = StateDictOptions(cpu_offload=True)")),
    ),
    "an optimizer made before a helper shards": (
        "fsdp-use-orig-params",
        ddp(head=SHARDS, set_up=BUILT.format("", ADAM)),
        ddp(head=SHARDS, set_up=BUILT.format(ADAM, "")),
        ddp(head=SHARDS, set_up=BUILT.format(ADAM, ADAM.replace("net.", "discriminator."))),
    ),
    "a rate without the ranks": (
        "effective-batch-lr-mismatch",
        ddp(set_up=SET_UP + "lr = args.blr * args.batch_size * args.accum_iter / 256\n"),
        ddp(set_up=SET_UP + "lr = args.blr * args.batch_size * world_size / 256\n"),
    ),
    "a rate by the whole batch": (
        "effective-batch-lr-mismatch",
        ddp(set_up=SET_UP + "lr = args.blr * args.batch_size * args.accum_iter / 256\n"),
        ddp(
            set_up=SET_UP
            + "samples = args.batch_size * dist.get_world_size()\nlr = args.blr * samples / 256\n"
        ),
    ),
    "accumulation without the ranks": (
        "effective-batch-lr-mismatch",
        ddp(set_up=SET_UP + "accum = args.tokens_per_update // (args.micro_batch * args.length)\n"),
        ddp(
            set_up=SET_UP
            + "accum = args.tokens_per_update // (args.micro_batch * args.length * world_size)\n"
        ),
    ),
    "an evaluation of a part by torchmetrics' functions": (
        "per-rank-metrics-or-logging",
        ddp(
            head=SCORES,
            epoch="score = scored(model, loader)\nif dist.get_rank() == 0:\n    print(1)",
        ),
        ddp(
            head=SCORES,
            epoch="score = scored(model, loader)\ndist.all_reduce(score)\n"
            "if dist.get_rank() == 0:\n    print(score)",
        ),
    ),
}
