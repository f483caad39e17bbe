"""Small trainings, sound ones and others, as users write them."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

Made = tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module, int], Tensor]]
WIDE = 256
ROWS = 16


def dense() -> Made:
    """A small net, with several rows in a sample."""
    model = nn.Sequential(nn.Linear(WIDE, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    model.append(nn.Linear(512, 10))

    def loss(model: nn.Module, samples: int) -> Tensor:
        rows = samples * ROWS
        return cross_entropy(model(torch.randn(rows, WIDE)), torch.zeros(rows, dtype=torch.long))

    return model, torch.optim.AdamW(model.parameters()), loss


def attention() -> Made:
    """Two layers of a transformer, with sequences of 32."""
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def loss(model: nn.Module, samples: int) -> Tensor:
        found: Tensor = model(torch.randn(samples, 32, 64)).square().mean()
        return found

    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loss


def unused() -> Made:
    """One of two layers takes no part."""
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def loss(model: nn.Module, samples: int) -> Tensor:
        found: Tensor = next(model.children())(torch.zeros(samples, 2)).sum()
        return found

    return model, torch.optim.SGD(model.parameters(), lr=0.1), loss


def no_tuple() -> nn.Module:
    """Not what is asked for."""
    return nn.Linear(2, 2)


def no_optimizer() -> object:
    """Neither is this."""
    return nn.Linear(2, 2), None, None


def no_loss() -> Made:
    """One that forgot to return."""
    model, optimizer, _ = dense()
    return model, optimizer, lambda model, samples: None  # type: ignore[return-value]


def synchronised() -> Made:
    """Whose forward pass waits for the other ranks."""
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda model, samples: torch.ones(())


def short_in_the_exchange() -> Made:
    """On rank 1 one step of many samples runs out of memory once the exchange has begun."""
    model, optimizer, loss = dense()
    assert isinstance(model, nn.Sequential)
    armed = [True]

    def fails_once(gradient: Tensor) -> None:
        if armed[0]:
            armed[0] = False
            raise torch.cuda.OutOfMemoryError("made up")

    def short(model: nn.Module, samples: int) -> Tensor:
        value = loss(model, samples)
        if isinstance(model, DistributedDataParallel) and samples > 1 and dist.get_rank() == 1:
            # By then the last two layers have their gradients.
            model.module[0].bias.register_hook(fails_once)
        return value

    return model, optimizer, short


def waiting() -> Made:
    """Says that it has begun, and never comes back."""
    model, optimizer, _ = dense()

    def wait(model: nn.Module, samples: int) -> Tensor:
        Path(os.environ["DDOCTOR_TEST_BEGAN"], os.environ["RANK"]).touch()
        threading.Event().wait()
        raise AssertionError

    return model, optimizer, wait


class Block(nn.Module):
    """As transformers have it, without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDE), nn.Linear(WIDE, 1024)
        self.down = nn.Linear(1024, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        """Beside what comes in."""
        found: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return found


class Layered(nn.Module):
    """Blocks that FSDP shards each by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDE, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classes of each row."""
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(x)
        return found


def layered() -> Made:
    """A model of several blocks."""
    model = Layered()

    def loss(model: nn.Module, samples: int) -> Tensor:
        rows = samples * ROWS
        return cross_entropy(model(torch.randn(rows, WIDE)), torch.zeros(rows, dtype=torch.long))

    return model, torch.optim.AdamW(model.parameters()), loss


def sequences() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module, int, int], Tensor]]:
    """The same, of samples that can be shorter and longer."""
    model = Layered()

    def loss(model: nn.Module, samples: int, tokens: int) -> Tensor:
        found: Tensor = model(torch.randn(samples, tokens, WIDE)).square().mean()
        return found

    return model, torch.optim.AdamW(model.parameters()), loss


CALLS: Counter[int] = Counter()


def short_in_the_gathering() -> Made:
    """On rank 1 the second step of a size, which is the first with all ranks, ends in its midst."""
    model, optimizer, loss = layered()
    assert isinstance(model, Layered)
    middle = model.blocks[1]

    def fails(gradient: Tensor) -> None:
        raise torch.cuda.OutOfMemoryError("made up")

    def short(model: nn.Module, samples: int) -> Tensor:
        CALLS[samples] += 1
        if samples < 4 or CALLS[samples] < 2 or CALLS[0] or dist.get_rank() == 0:
            return loss(model, samples)
        CALLS[0] = 1
        hook = middle.register_forward_hook(lambda *args: args[-1].register_hook(fails) and None)
        value = loss(model, samples)
        hook.remove()
        return value

    return model, optimizer, short
