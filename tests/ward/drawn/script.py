"""The frame of all scripts, and how parts are put into it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from string import Template
from textwrap import indent

from tests.ward.drawn.part import Part

FRAME = '''"""Train a $kind with plain DDP."""

import argparse
import os
import time
[[imports]]

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
[[options]]
args = parser.parse_args()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
[[helpers]]
[[network]]
[[dataset]]

dist.init_process_group("gloo")
torch.manual_seed($seed)
[[loader]]
model = DistributedDataParallel(Net(), [[wrapper]])
optimizer = torch.optim.$optimizer(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
started = time.perf_counter()


def report(step):
    global started
    if step % 10 == 0 and rank == 0:
        now = time.perf_counter()
        print(f"step {step}: {10 / (now - started):.2f} steps/s", flush=True)
        started = now


[[before]]
[[loop]]
dist.destroy_process_group()
'''
SLOT = re.compile(r"^( *)\[\[([a-z]+)\]\]\n", re.MULTILINE)
INLINE = re.compile(r"(, )?\[\[([a-z]+)\]\]")
ROOM = re.compile(r"\n+(?=(?:def|class) )|\n{4,}|\n+(?=table =|dist\.init)")
MARK = "  # HERE"


def compose(parts: Sequence[Part], values: Mapping[str, object]) -> tuple[str, tuple[int, ...]]:
    """The script, and the numbers of the lines that were marked."""
    text = FRAME
    while found := SLOT.search(text):
        filling = "".join(_fillings(parts, found[2]))
        text = text[: found.start()] + indent(filling, found[1]) + text[found.end() :]
    text = INLINE.sub(lambda slot: _inline(parts, slot), text)
    text = ROOM.sub("\n\n\n", text)
    lines = Template(text).substitute(values).splitlines()
    here = tuple(number for number, line in enumerate(lines, 1) if line.endswith(MARK))
    return "\n".join(line.removesuffix(MARK) for line in lines) + "\n", here


def slots(parts: Sequence[Part]) -> set[str]:
    """The slots that a script of these parts has."""
    texts = [FRAME, *(text for part in parts for text in part.slots.values())]
    return {found[2] for text in texts for found in INLINE.finditer(text)}


def _fillings(parts: Sequence[Part], slot: str) -> Iterator[str]:
    for part in parts:
        if slot in part.slots:
            yield part.slots[slot].strip("\n") + "\n"


def _inline(parts: Sequence[Part], slot: re.Match[str]) -> str:
    words = ", ".join(filling.strip() for filling in _fillings(parts, slot[2]))
    return f"{slot[1] or ''}{words}" if words else ""
