from __future__ import annotations

import pytest

from ddoctor.report.places import hosts, ranges, ranks


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("b", "a"), "b, a"),
        ([f"node-{n:04}" for n in range(4096)], "4096 hosts (node-[0000-4095])"),
        (
            [f"node-{n:02}.hall" for n in range(20) if n != 7],
            "19 hosts (node-[00-06,08-19].hall)",
        ),
        ([f"n{n}" for n in range(8, 16)] + ["login"], "9 hosts (login, n[8-9,10-15])"),
        (
            [f"node-{n:02}" for n in range(0, 40, 2)],
            "node-00, node-02, node-04, node-06, node-08, node-10 and 14 more",
        ),
        (list("abcdefgh"), "a, b, c, d, e, f and 2 more"),
    ],
)
def test_hosts(names: list[str], text: str) -> None:
    assert hosts(names) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), ""),
        ((3,), "rank 3"),
        ((7, 0, 1, 2), "ranks 0-2, 7"),
        (tuple(range(0, 80, 8)), "ranks 0, 8, 16, 24, 32, 40 and 4 more"),
        ((0, 2, 4, 6, 8, 10, *range(100, 200)), "ranks 0, 2, 4, 6, 8, 10 and 100 more"),
    ],
)
def test_ranks(numbers: tuple[int, ...], text: str) -> None:
    assert ranks(numbers) == text


def test_ranges() -> None:
    assert ranges((7, 3, 0, 1, 2)) == "0-3, 7"
