"""What the lengths of samples mean for a plan."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import SampleLengths
from ddoctor.forecast import lengths, request
from ddoctor.forecast.lengths import Lengths, applied, check, read
from ddoctor.forecast.method import Method
from ddoctor.forecast.options import PlanRequest
from tests.forecast.small_models import written
from tests.forecast.test_config_files import AXOLOTL
from tests.forecast.test_config_files import read as configured

FOUR = Lengths(Counter({10: 1, 20: 2, 70: 1}))


def test_every_form_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    rows = ["7", " 9 ", "", json.dumps({"text": "a", "tokens": 7})]
    rows.append(json.dumps({"id": 3, "length": 30}))
    path.write_text("\n".join(rows))
    assert read(path).counts == {7: 2, 9: 1, 30: 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("5\nten\n", ":2: write a length"),
        ("-5\n", ":1: write a length"),
        ("0\n", ":1: write a length"),
        ("1.5\n", ":1: write a length"),
        ("true\n", ":1: write a length"),
        ("999999999999\n", ":1: write a length"),
        ("9" * 5000, ":1: write a length"),
        ('{"a": 1, "b": 2}\n', ":1: write a length"),
        ('{"length": "x", "b": 2}\n', ":1: write a length"),
        ("[" * 100_000, ":1: write a length"),
    ],
)
def test_lines_without_a_length(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    with pytest.raises(DoctorError, match=words) as raised:
        read(path)
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DoctorError, match="No such file"):
        read(tmp_path / "none")
    with pytest.raises(DoctorError, match="no regular file"):
        read(tmp_path)
    long = tmp_path / "long"
    long.write_text("5\n" * 100)
    monkeypatch.setattr(lengths, "MOST_BYTES", 100)
    with pytest.raises(DoctorError, match=":51: the file is too long"):
        read(long)
    monkeypatch.setattr(lengths, "MOST_CHARACTERS", 1)
    with pytest.raises(DoctorError, match=":1: the line is too long"):
        read(long)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_the_mean_length_of_a_padded_batch(rows: int) -> None:
    """All batches that can be drawn, each as likely as the others."""
    batches = [*itertools.product([10, 20, 20, 70], repeat=rows)]
    assert FOUR.padded(rows) == pytest.approx(sum(map(max, batches)) / len(batches))


def test_what_batches_have() -> None:
    found = FOUR.of_batches(None, 2, packed=False)
    assert found == SampleLengths(samples=4, mean=30, longest=70, padded=FOUR.padded(2))
    # Of 2 rows of the longest each; the samples have 30 tokens in the mean.
    assert found.padding == pytest.approx(1 - 30 / FOUR.padded(2))
    cut = FOUR.of_batches(20, 2, packed=True)
    assert (cut.mean, cut.longest, cut.cut, cut.packed) == (17.5, 20, 1, True)
    assert FOUR.of_batches(500, 1, packed=False).cut == 0
    assert FOUR.of_batches(None, 1, packed=False).padding == 0


def test_what_they_change() -> None:
    wanted = PlanRequest(sequence=100, samples=50)
    padded, packed = (FOUR.of_batches(100, 2, packed=one) for one in (False, True))
    assert (applied(wanted, padded).sequence, applied(wanted, padded).samples) == (70, 50)
    # 50 samples of 30 tokens fill 15 rows of 100.
    assert (applied(wanted, packed).sequence, applied(wanted, packed).samples) == (100, 15)
    assert applied(PlanRequest(), packed).sequence == 70


def test_samples_longer_than_the_model_allows() -> None:
    found = FOUR.of_batches(None, 2, packed=False)
    check(found, "A", None)
    check(found, "A", 70)
    with pytest.raises(DoctorError, match=r"70 tokens, and A allows at most 64: .*--sequence 64"):
        check(found, "A", 64)


def test_packing_is_in_the_plan_with_flash_attention(tmp_path: Path) -> None:

    path = tmp_path / "lengths.txt"
    _, taken = configured(tmp_path, AXOLOTL, lengths=path)
    assert (taken.packed, taken.beyond) == (True, ())
    others: list[dict[str, Any]] = [{}, {"lengths": path, "attention": "sdpa"}]
    for options in others:
        _, taken = configured(tmp_path, AXOLOTL, **options)
        assert not taken.packed
        assert [one.name for one in taken.beyond] == ["sample_packing"]


@pytest.mark.ward
def test_memory_of_the_longest_and_time_of_the_mean(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("16\n" * 9 + "256\n")
    source = written(tmp_path, num_hidden_layers=2)

    def planned(**more: Any) -> SimpleNamespace:
        wanted = PlanRequest(model=source, gpu="h100", gpus="1", precision="fp32", **more)
        (row,) = (found := request.plan(wanted)).rows
        return SimpleNamespace(row=row, lengths=found.lengths)

    longest, padded = planned(sequence=256, micro_batch=4), planned(lengths=path, micro_batch=4)
    assert padded.row.parts == longest.row.parts
    assert padded.lengths.padded == pytest.approx(16 + 240 * (1 - 0.9**4))
    # So small a model only waits for the CPU, so it uses less of the GPU.
    shares = [one.row.step.share_of_peak for one in (padded, longest)]
    assert shares[0] / shares[1] == pytest.approx(padded.lengths.padded / 256, rel=0.1)
    pairs = planned(lengths=path, micro_batch=2, method=Method("dpo"))
    assert pairs.lengths.padded == pytest.approx(padded.lengths.padded)
