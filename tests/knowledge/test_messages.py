"""Messages that each tell a cause: every row is diagnosed by its example."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from ddoctor import check_catalog, engine, knowledge
from ddoctor.evidence.log import LogPatterns, Message, Messages
from ddoctor.models import Confidence, Finding, Severity
from ddoctor.reading import reader
from ddoctor.reading.log_lines import DIGITS

ROWS = knowledge.load(Messages).messages
KEY_ERROR = 'Traceback (most recent call last):\n  File "/a/t.py", line 3, in <module>\n    x()\n'


def findings(folder: Path, text: str) -> list[Finding]:
    (folder / "train.log").write_text(text + "\n")
    evidence, _ = reader.read([folder / "train.log"])
    report = engine.examine(evidence, "diagnose")
    assert report.crashed == ()
    return list(report.findings)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_its_example_has_its_cause(tmp_path: Path, row: Message) -> None:
    first = findings(tmp_path, row.example)[0]
    assert (first.cause, first.severity) == (row.cause, Severity(row.severity))
    assert "?" not in first.because.replace(row.example, "")
    dated = [one.value for one in first.evidence if one.name == "last release that prints it"]
    assert dated == [row.until] * bool(row.until)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row(row: Message) -> None:
    assert re.compile(row.text).search("") is None
    assert row.holds
    for text in row.holds:
        assert text == text.lower()
        assert len(text.encode().translate(None, DIGITS)) >= 6
    captured = set(re.compile(row.text).groupindex)
    asked = {name for _, name, _, _ in string.Formatter().parse(row.means) if name}
    assert asked <= captured
    # The reader takes these for who wrote the line.
    assert captured.isdisjoint({"rank", "host"})
    assert not (row.of_victims and row.confidence != "possible")


def test_each_name_is_there_once_and_each_cause_has_a_check() -> None:
    names = [row.name for row in (*ROWS, *knowledge.load(LogPatterns).patterns)]
    assert len(set(names)) == len(names)
    assert {row.cause for row in ROWS} <= set(check_catalog.names())
    patterns = {row.name for row in knowledge.load(LogPatterns).patterns}
    assert {row.unless for row in ROWS} - {""} <= patterns


@pytest.mark.parametrize("row", [row for row in ROWS if row.of_victims], ids=lambda row: row.name)
def test_what_victims_write_explains_no_exception(tmp_path: Path, row: Message) -> None:
    found = findings(tmp_path, f"{KEY_ERROR}KeyError: 'cat'\nINFO: it ends\n{row.example}")
    assert row.cause not in {one.cause for one in found}
    assert found[0].cause == "script-error"


def test_a_message_explains_the_error_that_shows_it(tmp_path: Path) -> None:
    text = "RuntimeError: NCCL WARN Invalid rank requested : 9/8"
    (finding,) = findings(tmp_path, f"{KEY_ERROR}{text}")
    assert (finding.cause, finding.confidence) == ("world-size-mismatch", Confidence.LIKELY)
    assert "script-error" in finding.consequences


PENDING = (
    "Warning  FailedScheduling  1s  default-scheduler  0/2 nodes are available: 2 Insufficient cpu."
)
SCHEDULED = "Normal  Scheduled  1s  default-scheduler  Successfully assigned team/train-0 to node-a"
BUSY = "srun: Job 4711 step creation temporarily disabled, retrying (Requested nodes are busy)"
CREATED = "srun: Step created for StepId={}.1"
STEPS = [f"loaded shard {number}" for number in range(30)]


@pytest.mark.parametrize(
    ("lines", "severity"),
    [
        ([PENDING], Severity.WARNING),
        ([PENDING, SCHEDULED], Severity.NOTE),
        ([SCHEDULED, PENDING], Severity.WARNING),
        ([PENDING, SCHEDULED, PENDING], Severity.WARNING),
        # Of another pod, as far as can be known.
        ([PENDING, *STEPS, SCHEDULED], Severity.WARNING),
        ([BUSY, *STEPS, CREATED.format(4711)], Severity.NOTE),
        ([BUSY, CREATED.format(4712)], Severity.WARNING),
    ],
)
def test_a_later_line_takes_a_message_back(
    tmp_path: Path, lines: list[str], severity: Severity
) -> None:
    (finding,) = findings(tmp_path, "\n".join(lines))
    assert finding.severity is severity
    assert finding.confidence is Confidence.POSSIBLE
    harmless = f"line {len(lines)} shows that it did no harm"
    assert (harmless in finding.because) is (severity is Severity.NOTE)


def test_of_the_messages_of_a_cause_the_worst_one_counts(tmp_path: Path) -> None:
    rows = {row.name: row.example for row in ROWS}
    waits, lost = rows["lustre-connection"], rows["lustre"]
    (finding,) = findings(tmp_path, f"{waits}\n{lost}\n{waits}")
    assert finding.severity is Severity.ERROR
    assert "evicted" in finding.because
