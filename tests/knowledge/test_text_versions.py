"""The releases that print a text: ``tools/text_versions.py``."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.text_versions import PACKAGES, dated, folded, is_of, table_rows, texts

SOURCE = b"""
def check(rank: int) -> None:
    raise ValueError(
        f"Rank {rank} has no "
        "GPU 17 of its own. "
        'Give it ' + "one."
    )
"""
LIBRARY = b"\x00\x01Watchdog caught 12 timeouts\x00no\x00\xff"


def test_what_a_package_prints() -> None:
    printed = texts([("a.py", SOURCE), ("half.py", b"def f(:"), ("lib.so.2", LIBRARY)])
    for text in ("has no GPU 17 of its own. ", "Watchdog caught 99 timeouts", "rank "):
        assert folded(text) in printed
    # Neither what two strings make together, nor what stands for a value, nor a name.
    for text in ("Give it one", "rank {rank} has", "ValueError", "Rank has no"):
        assert folded(text) not in printed


@pytest.mark.parametrize(
    ("source", "package", "alone"),
    [
        ("torch/csrc/autograd/engine.cpp", "torch", True),
        ("torch, c10/cuda/CUDAFunctions.cpp; c10/core", "torch", True),
        ("torch/utils/data; errno 24", "torch", False),
        ("torchtitan, parallel_dims.py", "torch", False),
        ("NCCL, init.cc", "NCCL", True),
        ("NCCL, init.cc; RCCL, init.cc", "NCCL", False),
        ("accelerate/state.py", "transformers", False),
    ],
)
def test_whose_text_it_is(source: str, package: str, alone: bool) -> None:
    assert is_of(source, PACKAGES[package]) is alone


def test_a_row_gets_its_releases() -> None:
    row = 'name = "one" # why\ntext = "x"\nsource = "torch/a.py"\nmore = 1\n'
    other = row.replace("one", "another")
    table = f"[[patterns]]\n{row}\n[[patterns]]\n{other}"
    both = dated(table, "one", "2.1", "2.4")
    with_both = row.replace("more", 'since = "2.1"\nuntil = "2.4"\nmore')
    assert both == f"[[patterns]]\n{with_both}\n[[patterns]]\n{other}"
    assert dated(both, "one", "2.1", "") == both.replace('until = "2.4"\n', "")
    assert dated(table, "missing", "2.1", "2.4") == table


@pytest.mark.parametrize("package", ["accelerate", "lightning"])
def test_the_installed_release_prints_what_the_newest_does(package: str) -> None:
    printed = texts(_installed(package))
    rows = [row for row in table_rows() if is_of(row["source"], PACKAGES[package])]
    dates = [row for row in rows if "since" in row]
    assert len(dates) > 15
    assert [row["name"] for row in dates if _is_in(row, printed) is ("until" in row)] == []


def _installed(package: str) -> Iterator[tuple[str, bytes]]:
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    for path in Path(found.origin).parent.rglob("*.py"):
        yield path.name, path.read_bytes()


def _is_in(row: dict[str, Any], printed: bytes) -> bool:
    return any(folded(text) in printed for text in row["holds"])
