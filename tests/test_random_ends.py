"""A signal to any process of ddoctor at any moment: it ends in time, and nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.random_ends import patient, play

ROUNDS, CHUNKS = 500, 10


@pytest.fixture(scope="module")
def looked_at() -> Iterator[int]:
    """The PID of a run that `ddoctor attach` looks at."""
    with patient() as pid:
        yield pid


@pytest.mark.parametrize(
    "seed", [94, 281, *(pytest.param(one, marks=pytest.mark.ward) for one in (99, 117))]
)
def test_nothing_is_left(tmp_path: Path, looked_at: int, seed: int) -> None:
    played = play(seed, tmp_path, looked_at)
    assert played.wrong == [], played


@pytest.mark.ward
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nothing_is_ever_left(tmp_path: Path, looked_at: int, chunk: int) -> None:
    each = ROUNDS // CHUNKS
    wrong = []
    for seed in range(chunk * each, (chunk + 1) * each):
        path = tmp_path / str(seed)
        path.mkdir()
        played = play(seed, path, looked_at)
        wrong += [played] * bool(played.wrong)
    assert wrong == []
