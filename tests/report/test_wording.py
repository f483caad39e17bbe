from __future__ import annotations

import pytest

from ddoctor.evidence.section import Evidence
from ddoctor.models import Cost, Skipped, Value, Verdict, Verified, Where
from ddoctor.report import wording
from tests.report import sample


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("sick", "3 findings, 1 note: start with finding 1"),
        ("healthy", "healthy"),
        ("incomplete", "incomplete: 2 parts of the examination failed; 1 finding"),
    ],
)
def test_verdict(name: str, line: str) -> None:
    assert wording.verdict(sample.SAMPLES[name]()[0]) == line


def test_a_note_leaves_a_machine_healthy() -> None:
    report = sample.report(sample.DEBUG_LEFT, verdict=Verdict.HEALTHY)
    assert wording.verdict(report) == "healthy, 1 note"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (87, "°C", "87 °C"),
        (405.04, "TFLOP/s", "405 TFLOP/s"),
        (55.0, "GB/s", "55.0 GB/s"),
        (0.02436, "GB/s", "0.0244 GB/s"),
        (1048576, "", "1048576"),
        (True, "", "yes"),
        ("eth0", "", "eth0"),
    ],
)
def test_quantity(value: Value, unit: str, text: str) -> None:
    assert wording.quantity(value, unit) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2**16, "64 KiB"),
        (1.5 * 2**20, "1.5 MiB"),
        (2**40, "1 TiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_size(count: float, text: str) -> None:
    assert wording.size(count) == text


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (Where(), ""),
        (Where(hosts=("a",), ranks=(3,)), "a, rank 3"),
        (Where(ranks=(7, 0, 1, 2), devices=("cuda:1",)), "ranks 0-2, 7, cuda:1"),
        (Where(hosts=tuple("abcdefgh")), "a, b, c, d, e, f and 2 more"),
    ],
)
def test_place(where: Where, text: str) -> None:
    assert wording.place(where) == text


def test_price() -> None:
    assert wording.price(Cost(value=0.31, unit="share of step")) == "31 % of the step"
    assert wording.price(Cost(value=12.5, unit="GiB")) == "12.5 GiB"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (0.9, 0.6, "0.9 → 0.6 s/step (-33 %)"),
        (10.0, 15.0, "10.0 → 15.0 s/step (+50 %)"),
        (0.0, 1.5, "0 → 1.5 s/step"),
        (0.081, 0.034, "0.081 → 0.034 s/step (2.4 times as fast)"),
        (0.0102, 0.0052, "0.0102 → 0.0052 s/step (-49 %)"),
    ],
)
def test_proof(before: float, after: float, text: str) -> None:
    assert wording.proof(Verified(before=before, after=after, unit="s/step")) == text


def test_a_proof_says_the_same_of_figures_that_were_rounded_before() -> None:
    measured = Verified(before=0.11693, after=0.04772, unit="s/step")
    told = Verified(before=0.1169, after=0.04772, unit="s/step")
    assert wording.proof(measured) == wording.proof(told)


def test_proof_of_a_rate() -> None:
    far = Verified(before=0.012, after=1.2, unit="GB/s")
    assert wording.proof(far) == "0.012 → 1.2 GB/s (100 times)"
    less = Verified(before=3.0, after=1.0, unit="GB/s")
    assert wording.proof(less) == "3 → 1 GB/s (-67 %)"


def test_what_was_left_out_is_grouped_by_its_reason() -> None:
    report, evidence = sample.incomplete()
    gpus, probe = wording.left_out(report, evidence)
    assert str(gpus) == "4 checks need gpus evidence: no NVIDIA driver on this machine"
    assert str(probe) == "probe host_to_device: no GPU"


def test_a_reason_in_other_words_is_kept() -> None:
    skipped = (Skipped(check="clock-skew", reason="the moon is full"),)
    report = sample.report(verdict=Verdict.HEALTHY, skipped=skipped)
    assert [str(group) for group in wording.left_out(report, Evidence())] == [
        "clock-skew: the moon is full"
    ]


def test_what_was_not_seen_is_grouped_by_its_reason() -> None:
    _, evidence = sample.two_hosts()
    (group,) = wording.unseen(evidence)
    assert group.names == ("ACS of PCIe bridges",)
    assert group.reason == "needs root"
