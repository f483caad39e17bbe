"""Optimizers that are made before FSDP replaces the parameters, in another function or method."""

from __future__ import annotations

from tests.script.sources import HEAD

BEGIN = f"""{HEAD}
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
"""
LOOP = """
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

main(batches(), sampler())
dist.destroy_process_group()
"""
HELPERS = """
def make_model():
    net = Net()
    return net.cuda()

def shard(net{more}):
    {wrap}

def adam(net, lr):
    groups = [one for one in net.parameters() if one.requires_grad]
    return torch.optim.AdamW(groups, lr=lr)

def main(loader, sampler):
    model = make_model()
"""
WRAP = "return FSDP(net)"
EACH = "for layer in net.layers:\n        fully_shard(layer)\n    fully_shard(net)\n    return net"
SHARD = "    model = shard(model)\n"
LAYERS = "    for layer in model.layers:\n        fully_shard(layer)\n"
REST = "    fully_shard(model)\n"
GIVEN = "AdamW(groups"
ADAM = "    optimizer = adam(model, 1e-3)\n"


def helpers(*lines: str, wrap: str = WRAP, more: str = "") -> str:
    return BEGIN + HELPERS.format(wrap=wrap, more=more) + "".join(lines) + LOOP


OBJECT = """
class Trainer:
    def __init__(self, loader, sampler):
        self.loader, self.sampler = loader, sampler
        self.make_model()
        {calls}

    def make_model(self):
        self.model = Net().cuda()
        self.judge = Net().cuda()

    def adam(self):
        self.optimizer = torch.optim.AdamW(self.{trained}.parameters())

    def wrap(self):
        {wrap}

    def fit(self):
        for epoch in range(10):
            self.sampler.set_epoch(epoch)
            for batch in self.loader:
                self.optimizer.zero_grad()
                self.model(batch).sum().backward()
                self.optimizer.step()

Trainer(batches(), sampler()).fit()
dist.destroy_process_group()
"""
METHODS = ("self.adam()", "self.wrap()")


def methods(
    *calls: str, wrap: str = "self.model = FSDP(self.model)", trained: str = "model"
) -> str:
    lines = f"\n{' ' * 8}".join(calls)
    return BEGIN + OBJECT.format(calls=lines, wrap=wrap, trained=trained)


TWINS = {
    "an optimizer in a function before FSDP": (
        "fsdp-use-orig-params",
        helpers(ADAM, SHARD),
        helpers(SHARD, ADAM),
        helpers(ADAM, SHARD, wrap="return FSDP(net, use_orig_params=True)"),
        helpers(ADAM, SHARD, wrap="return FSDP(net, **options)"),
        helpers(ADAM, SHARD, wrap="return DDP(net)"),
        # The optimizer is made again, or gets the new parameters.
        helpers(ADAM, SHARD, "    optimizer = torch.optim.AdamW(model.parameters())\n"),
        helpers(ADAM, SHARD, "    optimizer = create_optimizer(model)\n"),
        helpers(ADAM, SHARD, "    optimizer.param_groups[0]['params'] = [*model.parameters()]\n"),
        # Another model.
        helpers(ADAM, "    teacher = shard(load_teacher())\n"),
        # Which wrapper a run takes is not known.
        helpers(ADAM, SHARD, wrap="if args.fsdp:\n        return FSDP(net)\n    return DDP(net)"),
    ),
    "an optimizer of groups in a function before FSDP": (
        "fsdp-use-orig-params",
        helpers(ADAM, SHARD).replace(GIVEN, 'AdamW([{"params": groups}, {"params": []}]'),
        helpers(SHARD, ADAM).replace(GIVEN, 'AdamW([{"params": groups}, {"params": []}]'),
    ),
    "an optimizer in a function before fully_shard": (
        "fsdp-use-orig-params",
        helpers(ADAM, SHARD, wrap=EACH),
        helpers(SHARD, ADAM, wrap=EACH),
        helpers("    if args.fsdp:\n    ", SHARD, "    else:\n    ", ADAM, wrap=EACH),
        helpers("    if args.ddp:\n    ", ADAM, "    else:\n    ", SHARD, wrap=EACH),
    ),
    "an optimizer between the layers and the rest of the model": (
        "fsdp-use-orig-params",
        helpers(LAYERS, ADAM, REST, wrap="return net"),
        helpers(LAYERS, REST, ADAM, wrap="return net"),
        helpers(
            ADAM,
            LAYERS,
            REST,
            "    optimizer = torch.optim.AdamW(model.parameters())\n",
            wrap="return net",
        ),
    ),
    "an optimizer in a function before several ranks share the model": (
        "fsdp-use-orig-params",
        helpers(ADAM, "    if dist.get_world_size() > 1:\n    ", SHARD),
        helpers("    if dist.get_world_size() > 1:\n    ", SHARD, ADAM),
    ),
    "an optimizer in a method before FSDP": (
        "fsdp-use-orig-params",
        methods(*METHODS),
        methods(*reversed(METHODS)),
        methods(*METHODS, trained="judge"),
        methods(*METHODS, wrap="self.model = DDP(self.model)"),
        methods(*METHODS, "self.optimizer = torch.optim.SGD(self.model.parameters(), 1)"),
        methods(*METHODS, "self.adam()"),
    ),
}
"""Each: the cause, a script with it, and sound scripts that are nearly the same."""
