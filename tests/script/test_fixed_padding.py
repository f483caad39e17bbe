"""Where a script pads each sample to a fixed length."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

COLLATE = """
import torch
import torch.nn.functional as F
from functools import partial
from torch.utils.data import DataLoader

LENGTH = 512

def collate(samples, length=LENGTH):
    longest = max(len(one) for one in samples)
{body}

DataLoader(data, 8, collate_fn={given})
"""
ITEM = """
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

class Texts(Dataset):
    def __init__(self, rows, tokenizer, length):
        self.rows, self.tokenizer, self.length = rows, tokenizer, length

    def __getitem__(self, index):
        ids = self.rows[index]
{body}
        return ids
"""


TOKENIZER = """
class Tokenizer:
    def __call__(self, words, length):
        ids = [self.table[word] for word in words]
        rest = length - len(ids)
        return {{"input_ids": ids + [0] * rest, "attention_mask": [1] * len(ids) + [0] * rest}}

def prepare(rows, length=128):
    tokenizer = Tokenizer(rows)
    return [tokenizer(row, {length}) for row in rows]
"""


def collate(body: str, given: str = "collate") -> str:
    return COLLATE.format(body="\n".join(f"    {line}" for line in body.split("\n")), given=given)


def item(body: str) -> str:
    return ITEM.format(body="\n".join(f"        {line}" for line in body.split("\n")))


@pytest.mark.parametrize(
    "source",
    [
        "rows = tokenizer(texts, padding='max_length', max_length=512, truncation=True)",
        TOKENIZER.format(length="128"),
        TOKENIZER.format(length="length"),
        collate("return torch.stack([F.pad(one, (0, LENGTH - len(one))) for one in samples])"),
        collate(
            "return torch.stack([F.pad(one, (0, 512 - one.size(0)), value=1) for one in samples])"
        ),
        collate("return torch.tensor([one + [0] * (length - len(one)) for one in samples])"),
        collate(
            "ids = torch.full((len(samples), length), 0)\n"
            "for row, one in enumerate(samples):\n"
            "    ids[row, : len(one)] = one\n"
            "return ids",
            "partial(collate, length=1024)",
        ),
        collate(
            "ids = torch.zeros(len(samples), 256, 80)\n"
            "for row, one in enumerate(samples):\n"
            "    width = one.shape[0]\n"
            "    ids[row, :width] = one\n"
            "return ids"
        ),
        item("ids = ids + [0] * (self.length - len(ids))"),
        item("ids += [self.tokenizer.pad] * (self.length - len(ids))"),
        item("ids = F.pad(ids, (0, self.length - ids.shape[0]))"),
        item("out = torch.zeros(self.length)\nout[: len(ids)] = ids\nids = out"),
    ],
)
def test_padded_to_a_fixed_length(script: Read, source: str) -> None:
    assert len(script(source).fixed_padding) == 1


@pytest.mark.parametrize(
    "source",
    [
        TOKENIZER.format(length="max(map(len, rows))"),
        "rows = tokenizer(texts, padding=True, max_length=512, truncation=True)",
        "rows = tokenizer(texts, padding='longest', pad_to_multiple_of=8)",
        "rows = tokenizer(texts, padding='max_length' if args.tpu else True)",
        "ids = tokenizer(text, padding='max_length', max_length=tokenizer.model_max_length)",
        "if on_tpu:\n    rows = tokenizer.pad(rows, padding='max_length', max_length=128)",
        "import diffusers\nids = tokenizer(prompt, padding='max_length', max_length=77)",
        collate("return torch.stack([F.pad(one, (0, longest - len(one))) for one in samples])"),
        collate("return torch.tensor([one + [0] * (longest - len(one)) for one in samples])"),
        collate(
            "longest = min(longest, LENGTH)\n"
            "ids = torch.full((len(samples), longest), 0)\n"
            "for row, one in enumerate(samples):\n"
            "    ids[row, : len(one)] = one\n"
            "return ids"
        ),
        collate("return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)"),
        collate("return F.pad(torch.stack(samples), (1, 1, 1, 1))"),
        collate("return torch.stack(samples)[:, :LENGTH]"),
        collate(
            "halves = torch.zeros(len(samples), LENGTH)\n"
            "halves[:, : LENGTH // 2] = 1.0\n"
            "return halves"
        ),
        item("ids = ids + [0] * (-len(ids) % 8)"),
        item("ids = ids[: self.length]"),
        # Parts of long samples; one that is shorter is rare.
        item(
            "if len(ids) > self.length:\n"
            "    ids = ids[index : index + self.length]\n"
            "else:\n"
            "    ids = F.pad(ids, (0, self.length - len(ids)))"
        ),
        # Not where samples or batches are made.
        "def generate(ids, length):\n    return ids + [0] * (512 - len(ids))",
    ],
)
def test_quiet(script: Read, source: str) -> None:
    assert script(source).fixed_padding == ()
