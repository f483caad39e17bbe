"""Mistakes behind a decorator, a class or a function of the script's own."""

from __future__ import annotations

from tests.script.sources import SET_UP, ddp
from tests.script.twins.parts import FSDP, SHARDED

LEADER = """
from torch.distributed.fsdp import StateDictType

def leader(function):
    def inner(*given):
        {test}
            return function(*given)
        {more}
    return inner

@leader
def keep(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = model.state_dict()
    use(state)
"""
FIRST = "if dist.get_rank() == 0:"


def led(test: str = FIRST, more: str = "return None", call: str = "keep(model)") -> str:
    head = FSDP + LEADER.format(test=test, more=more)
    return ddp(head=head, set_up=SHARDED.format("load(rank)"), epoch=call)


ADAPTED = """
from torch import nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

class Adapter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down, self.up = nn.Linear(width, 8), nn.Linear(8, width)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.adapter = nn.Linear(width, width), Adapter(width)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(64) for _ in range(4))
        self.head = Adapter(64)

    def prepare(self):
        for name, weight in self.named_parameters():
            weight.requires_grad_({test})
        return self
"""
IN_ADAPTERS = "'.adapter.' in name"
BY_BLOCKS = "auto_wrap_policy=ModuleWrapPolicy({Block})"


def adapted(test: str = IN_ADAPTERS, options: str = BY_BLOCKS) -> str:
    set_up = SHARDED.format(f"Net().prepare(), {options}")
    return ddp(head=FSDP + ADAPTED.format(test=test), set_up=set_up)


BY_TORCH = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
DECODER = """
import functools
from torch import nn
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        {more}

policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={{{block}}})
"""


def wrapped(block: str, more: str = "pass") -> str:
    head = BY_TORCH + DECODER.format(block=block, more=more)
    return ddp(head=head, set_up=SHARDED.format("Net(), auto_wrap_policy=policy"))


RATE = """
def rate_of(cfg):
    whole = cfg.data.batch_size * cfg.accum
    return cfg.base_rate * {whole} / {over}
"""


def rated(whole: str = "whole", over: str = "cfg.ref_batch") -> str:
    made = "optimizer = torch.optim.AdamW(model.parameters(), lr=rate_of(cfg))\n"
    return ddp(head=RATE.format(whole=whole, over=over), set_up=SET_UP + made)


MASKED = """
from torch import nn

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.side = nn.Linear(8, 8), nn.Linear(8, 4)
        {more}

    def forward(self, waves, mask=None):
        hidden = self.body(waves)
        if {test}:
            return hidden, self.side(hidden)
        return hidden

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, waves):
        return self.encoder({given})
"""


def masked(given: str = "waves", test: str = "mask is not None", more: str = "pass") -> str:
    return ddp(head=MASKED.format(given=given, test=test, more=more))


STREAM = """
import random

class Stream(IterableDataset):
    def __init__(self, files, rank, world, seed):
        self.files = files[rank::world]
        self.seed = seed + 1000 * rank

    def rows(self):
        {draws}
        while True:
            order = list(self.files)
            {shuffles}
            for file in order{part}:
                yield from open(file)

    def __iter__(self):
        yield from self.rows()
"""
OF_STREAM = """
stream = Stream(args.files, dist.get_rank(), dist.get_world_size(), 7)
loader = DataLoader(stream, num_workers={workers})
"""


def streamed(
    draws: str = "draws = random.Random(self.seed)",
    shuffles: str = "draws.shuffle(order)",
    part: str = "",
    workers: str = "4",
) -> str:
    head = STREAM.format(draws=draws, shuffles=shuffles, part=part)
    return ddp(head=head, loader=OF_STREAM.format(workers=workers), each_epoch="")


TWINS = {
    "a state that a decorator leaves to one rank": (
        "rank0-only-collective",
        led(),
        led(test="if True:"),
        led(more="return function(*given)"),
        led(test="if dist.is_initialized():"),
    ),
    "adapters of the script's own in a flat parameter": (
        "fsdp-mixed-params-flatten",
        adapted(),
        adapted(options=f"{BY_BLOCKS}, use_orig_params=True"),
        adapted(options="auto_wrap_policy=ModuleWrapPolicy({Block, Adapter})"),
        adapted(test="'.blocks.' in name"),
        adapted(test="True"),
    ),
    "a policy with a layer of torch that the model has not": (
        "fsdp-wrap-policy-wrong",
        wrapped("nn.TransformerDecoderLayer"),
        wrapped("Block"),
        wrapped(
            "nn.TransformerDecoderLayer",
            "self.more = nn.TransformerDecoderLayer(d_model=8, nhead=2)",
        ),
        wrapped("nn.TransformerDecoderLayer", "self.more = nn.Transformer()"),
        wrapped("layers.Block"),
    ),
    "a rate of a function, without the ranks": (
        "effective-batch-lr-mismatch",
        rated(),
        rated(whole="whole * dist.get_world_size()"),
        rated(whole="cfg.total_batch"),
        rated(over="cfg.warmup"),
        rated(over="3"),
    ),
    "a layer for an argument that no call gives": (
        "ddp-unused-parameters",
        masked(),
        masked(given="waves, waves > 0"),
        masked(given="waves, mask=waves > 0"),
        masked(given="*waves"),
        masked(test="mask is None"),
        masked(more="self.side.requires_grad_(False)"),
        masked().replace("DDP(Net()", "DDP(Encoder()"),
        masked() + "\nencode(model.module.encoder, data)\n",
    ),
    "a layer for a test of an argument that no call gives": (
        "ddp-unused-parameters",
        masked(test="mask"),
        masked(test="not mask"),
        masked(test="mask or self.training"),
    ),
    "a stream without an end that each worker of a rank orders alike": (
        "iterable-dataset-not-sharded",
        streamed(),
        streamed(draws="pass", shuffles="random.shuffle(order)"),
        streamed(
            draws="info = torch.utils.data.get_worker_info()",
            shuffles="pass",
            part="[info.id :: info.num_workers]",
        ),
        streamed(workers="0"),
        streamed(workers="1"),
        streamed(draws="draws = random.Random(os.getpid())"),
    ),
}
"""Each: the cause, a script with it, and sound scripts that are nearly the same."""
