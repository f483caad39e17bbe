"""Embeddings of which a batch uses few rows."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

MODEL = """
import argparse
from torch import nn
from dataclasses import dataclass

ITEMS = 400_000

@dataclass
class Config:
    users: int = 1_000_000
    words: int = 50_000

parser = argparse.ArgumentParser()
parser.add_argument("-a", "--all-artists", type=int, default=200_000)
parser.add_argument("--songs", type=int, default=2_000)
args = parser.parse_args()

class Towers(nn.Module):
    def __init__(self, config, artists, size=250_000):
        super().__init__()
        {line}
        self.head = nn.Linear(64, 150_000)

Towers(Config(), args.all_artists)
"""


@pytest.mark.parametrize(
    "line",
    [
        "self.items = nn.Embedding(ITEMS, 64)",
        "self.items = nn.EmbeddingBag(2 * ITEMS, 64, mode='mean')",
        "self.items = nn.Embedding(num_embeddings=1 << 20, embedding_dim=64, sparse=False)",
        "self.items = nn.Embedding(10**6, 64)",
        "self.items = nn.Embedding(size, 64)",
        "self.users = nn.Embedding(config.users, 64)",
        "self.artists = nn.Embedding(artists, 64)",
        "self.artists = nn.Embedding(args.all_artists, 64)",
        "self.tables = nn.ModuleList([nn.Embedding(ITEMS + 1, 8) for _ in range(4)])",
    ],
)
def test_of_which_a_batch_uses_few_rows(script: Read, line: str) -> None:
    (one,) = script(MODEL.format(line=line)).large_tables
    assert one.text in line


@pytest.mark.parametrize(
    "line",
    [
        "self.items = nn.Embedding(ITEMS, 64, sparse=True)",
        "self.items = nn.Embedding(ITEMS, 64, **options)",
        "self.words = nn.Embedding(config.words, 64)",
        "self.words = nn.Embedding(unknown, 64)",
        "self.songs = nn.Embedding(args.songs, 64)",
        "self.words = nn.Embedding(10**90, 64)",
        "self.words = nn.Embedding(150_000, 64)",
        "self.items = nn.Linear(ITEMS, 64)",
    ],
)
def test_quiet(script: Read, line: str) -> None:
    assert script(MODEL.format(line=line)).large_tables == ()
