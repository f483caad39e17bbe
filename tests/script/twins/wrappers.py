"""Mistakes around model and data: DDP that is left out, data that Fabric does not get."""

from __future__ import annotations

from tests.script import sources
from tests.script.sources import ddp

PAST = """\
optimizer.zero_grad()
loss = {forward}.sum()
loss.backward()
optimizer.step()
"""
ENCODER = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Linear(8, 8)

    def embed(self, batch):
        return self.layers(batch)

    def forward(self, batch):
        return self.embed(batch)

    def width(self):
        return self.layers.out_features
"""


def past(forward: str, epoch: str = "") -> str:
    return ddp(head=ENCODER, step=PAST.format(forward=forward), epoch=epoch)


TASK = """
class Task:
    def __init__(self, net):
        self.net = net

    {decorator}
    def loss(self, batch):
        return self.net(batch).sum()
"""
RAW = sources.SET_UP.replace("model = DDP(Net().to(local_rank))", "net = Net().to(local_rank)\n{}")
EARLY = "task = Task(net)\nmodel = DDP(net)"
LATE = "model = DDP(net)\ntask = Task(model)"


def task(made: str, loss: str = "task.loss(batch)", after: str = "", decorator: str = "") -> str:
    step = f"optimizer.zero_grad()\nloss = {loss}\nloss.backward()\n{after}\noptimizer.step()"
    return ddp(head=TASK.format(decorator=decorator), set_up=RAW.format(made), step=step)


IN_A_CLASS = """
class Run:
    def __init__(self, rank):
        net = Net().to(rank)
        self.net = DDP(net, device_ids=[rank])

    def loss(self, batch):
        return self.net{inner}.embed(batch).sum()

    def step(self, batch):
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

run = Run(local_rank)
"""


def in_a_class(loss: str, inner: str = ".module") -> str:
    run = IN_A_CLASS.format(loss=loss, inner=inner)
    return ddp(head=ENCODER, before="", step="run.step(batch)", set_up=SET_UP + run)


SET_UP = """\
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
data = Images()
"""
FABRIC = """
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

fabric = Fabric(strategy="ddp")
model, optimizer = fabric.setup(net(), adam())
loader = DataLoader(images(), 32, {options}num_workers=4, persistent_workers=True)
{more}
for epoch in range(10):
    for number, batch in enumerate(loader):
        {step}
    {end}
"""
STEP = "optimizer.zero_grad(); fabric.backward(model(batch).sum()); optimizer.step()"
HELD = """last = number % 4 == 3
        with fabric.no_backward_sync(model, enabled=not last):
            fabric.backward(model(batch).sum() / 4)
        if last:
            optimizer.step()
            optimizer.zero_grad()"""
GIVEN = "loader = fabric.setup_dataloaders(loader)"


def fabric(*, options: str = "shuffle=True, ", more: str = "", step: str = STEP) -> str:
    return FABRIC.format(options=options, more=more, step=step, end="fabric.barrier()")


OF_TRAINER = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

{test}{name} = AutoModelForCausalLM.from_pretrained("small", {how})
Trainer(model=prepare(model), args=TrainingArguments("out"), train_dataset=rows()).train()
"""


def loaded(name: str, how: str, test: str = "") -> str:
    return OF_TRAINER.format(name=name, how=how, test=test)


STAGED = """
class Staged(torch.nn.Module):
    def freeze(self):
        for one in self.trunk.parameters():
            one.requires_grad = False

    def thaw(self):
        for one in self.{part}.parameters():
            one.requires_grad = True

    def forward(self, batch):
        return self.head(self.trunk(batch))
"""
BY_STAGES = sources.SET_UP.replace("model = DDP(", "net = Staged()\n{}model = DDP(").replace(
    "DDP(Net()", "DDP(net"
)


def staged(before: str, epoch: str, part: str = "trunk") -> str:
    head = STAGED.format(part=part)
    return ddp(head=head, set_up=BY_STAGES.format(before), epoch=epoch)


THAW = "if epoch == 3:\n    model.module.{}"


BY_METHODS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

class Tuner:
    def __init__(self, args):
        torch.manual_seed(3)
        self.net = Net()
        self.switch({first})
        self.model = DDP(self.net)
        self.optimizer = torch.optim.AdamW(self.net.head.parameters(), lr=1e-3)
        data = images()
        self.sampler = DistributedSampler(data, shuffle=True)
        self.loader = DataLoader(data, 32, sampler=self.sampler)

    def switch(self, on):
        {body}

    def enter(self, stage):
        if {test}:
            self.switch({then})
            self.optimizer.add_param_group({{"params": self.net.trunk.parameters()}})

    def train(self):
        for number, one in enumerate(stages):
            self.enter(one)
            self.sampler.set_epoch(number)
            for batch, wanted in self.loader:
                self.optimizer.zero_grad()
                torch.nn.functional.mse_loss(self.model(batch), wanted).backward()
                self.optimizer.step()

args = options()
dist.init_process_group("gloo")
Tuner(args).train()
dist.destroy_process_group()
"""
EACH = "for one in self.net.trunk.parameters(): one.requires_grad_(on)"
SOME = (
    "for one in self.net.trunk.parameters():\n            if one.dim() > 1: one.requires_grad_(on)"
)
WHOLE = "self.net.trunk.requires_grad_(on)"


UNWRAP = """
def unwrap(model):
    return model.module if hasattr(model, "module") else model
"""


OF_ONE = sources.SET_UP.replace("(local_rank))", "(local_rank), device_ids={})")
TWINS = {
    "DDP with one GPU for all ranks": (
        "wrong-device-binding",
        ddp(set_up=OF_ONE.format("[0]")),
        ddp(set_up=OF_ONE.format("[local_rank]")),
        ddp(set_up=OF_ONE.format("None")),
        ddp(set_up=OF_ONE.format("[gpu]")),
        ddp(set_up='os.environ["CUDA_VISIBLE_DEVICES"] = gpu\n' + OF_ONE.format("[0]")),
    ),
    "a part that trains since DDP was made": (
        "replicas-diverged",
        staged("net.freeze()\n", THAW.format("thaw()")),
        staged("net.freeze()\n", "pass"),
        staged("net.freeze()\n", THAW.format("thaw()"), part="head"),
        staged("net.freeze()\nnet.thaw()\n", "pass"),
        staged("net.freeze()\nnet.thaw()\n", THAW.format("thaw()")),
        staged("", THAW.format("freeze()")),
        staged("net.freeze()\n", THAW.format("thaw()").replace("epoch == 3", "args.thaws")),
        staged("if args.freezes:\n    net.freeze()\n", THAW.format("thaw()")),
        staged("", "model.module.freeze()\nmodel.module.thaw()"),
        staged("net.freeze()\n", THAW.format("thaw()") + "\n    model = DDP(model.module)"),
    ),
    "a part that a line sets to train since DDP was made": (
        "replicas-diverged",
        staged("net.trunk.requires_grad_(False)\n", THAW.format("trunk.requires_grad_(True)")),
        staged("net.trunk.requires_grad_(False)\n", THAW.format("head.requires_grad_()")),
    ),
    "a part that a stage of the training lets train": (
        "replicas-diverged",
        BY_METHODS.format(body=EACH, first=False, test="stage.rate > 0", then=True),
        BY_METHODS.format(body=EACH, first=True, test="stage.rate > 0", then=True),
        BY_METHODS.format(body=EACH, first=False, test="stage.rate > 0", then=False),
        BY_METHODS.format(body=EACH, first=False, test="args.thaws", then=True),
        BY_METHODS.format(body=EACH, first="args.thaws", test="stage.rate > 0", then=True),
        BY_METHODS.format(body=SOME, first=False, test="stage.rate > 0", then=True),
    ),
    "a part that a method lets train, whole": (
        "replicas-diverged",
        BY_METHODS.format(body=WHOLE, first=False, test="stage.rate > 0", then=True),
        BY_METHODS.format(body=WHOLE, first=True, test="stage.rate > 0", then=True),
        BY_METHODS.format(body=WHOLE, first=False, test="stage.rate > 0", then=False),
    ),
    "a model that each rank divides among all GPUs": (
        "wrong-device-binding",
        loaded("model", 'device_map="auto"'),
        loaded("model", 'device_map={"": local_rank()}'),
        loaded("model", "device_map=args.places"),
        loaded("teacher", 'device_map="auto"'),
        loaded("model", 'device_map="auto"').replace("AutoModelForCausalLM", "AutoModel"),
        loaded("model", 'device_map="auto"', "if args.alone:\n    "),
    ),
    "a forward pass that leaves DDP out": (
        "replicas-diverged",
        past("model.module(batch)"),
        past("model(batch)"),
        past("model(batch) + model.module.width()"),
        past("model(batch)", "with torch.no_grad():\n    model.module(data)"),
    ),
    "a forward pass of what a function unwraps": (
        "replicas-diverged",
        UNWRAP + past("unwrap(model)(batch)"),
        UNWRAP + past("model(batch)"),
        UNWRAP + past("model(batch) + unwrap(model)(batch)"),
        UNWRAP + past("model(batch)", "with torch.no_grad():\n    unwrap(model)(data)"),
        UNWRAP.replace("model.module if", "model.net if") + past("unwrap(model)(batch)"),
    ),
    "a model that an object has got before DDP": (
        "replicas-diverged",
        task(EARLY),
        task(LATE),
        task("net = DDP(net)\ntask = Task(net)"),
        task(EARLY, "model(batch).sum() + task.loss(batch)"),
        task(EARLY, "train(model, batch) + task.loss(batch)"),
        task(EARLY, "model(batch).sum() + task.loss(batch)", decorator="@torch.no_grad()"),
        task(EARLY, after="for one in net.parameters(): dist.all_reduce(one.grad)"),
        task("task = Task(Net())\nmodel = DDP(net)"),
    ),
    "a model that keeps its name beside that of DDP": (
        "replicas-diverged",
        task("model = DDP(net)", "net(batch).sum()"),
        task("model = DDP(net)", "model(batch).sum()"),
        task("net = DDP(net)", "net(batch).sum()"),
        task("model = DDP(net)\nnet = model", "net(batch).sum()"),
    ),
    "a method of the model inside DDP": (
        "replicas-diverged",
        in_a_class("self.loss(batch)"),
        in_a_class("self.net(batch).sum()"),
        in_a_class("self.net(batch).sum() + self.loss(batch)"),
    ),
    "data that Fabric does not get": (
        "duplicate-data-across-ranks",
        fabric(),
        fabric(more=GIVEN),
        fabric(options="sampler=split(fabric.global_rank), "),
        fabric(more=GIVEN, step=HELD),
    ),
}
