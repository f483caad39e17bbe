"""Parts by rank of data that is sorted by length."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SORT = "order = sorted(range(len(texts)), key=lambda one: len(texts[one]))\n"
PART = "mine = order[rank * size : (rank + 1) * size]\n"
IN_FUNCTIONS = """
def manifest(rows):
    return sorted(rows, key=lambda row: row.num_frames)

def share(rows, rank, world):
    begin = rank * (len(rows) // world)
    return rows[begin : begin + len(rows) // world]

mine = share(manifest(rows), dist.get_rank(), dist.get_world_size())
"""


@pytest.mark.parametrize(
    ("text", "sorts"),
    [
        (SORT + PART, 1),
        ("texts.sort(key=len)\nmine = texts[local_rank * size : (local_rank + 1) * size]\n", 1),
        ("order = np.argsort(lengths)\nmine = np.array_split(order, world)[rank]\n", 1),
        ("order = torch.argsort(lengths)\nmine = order.chunk(world)[rank].tolist()\n", 1),
        ("order = lengths.argsort().tolist()\n" + PART, 1),
        (SORT + "order = [order[at : at + 8] for at in range(0, len(order), 8)]\n" + PART, 1),
        (IN_FUNCTIONS, 3),
    ],
)
def test_a_part_in_a_row(script: Read, text: str, sorts: int) -> None:
    (one,) = script(text).sorted_shares
    assert one.sorts.line == sorts
    assert "rank" in one.at.text or "begin" in one.at.text


@pytest.mark.parametrize(
    "text",
    [
        SORT + "mine = order[rank::world]\n",
        SORT + "random.shuffle(order)\n" + PART,
        SORT + "mine = order[:size]\n",
        SORT + "mine = order[at * size : (at + 1) * size]\n",
        "order = sorted(names)\n" + PART,
        "order = sorted(files, key=lambda one: one.name)\n" + PART,
        "order = list(range(len(texts)))\n" + PART,
        SORT + "mine = others[rank * size : (rank + 1) * size]\n",
        SORT + "mine = np.array_split(order, world)[0]\n",
        IN_FUNCTIONS.replace("row.num_frames", "row.name"),
        IN_FUNCTIONS.replace("rows[begin : begin + len(rows) // world]", "rows[rank::world]"),
    ],
)
def test_other_parts(script: Read, text: str) -> None:
    assert script(text).sorted_shares == ()
