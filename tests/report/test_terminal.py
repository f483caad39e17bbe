from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from ddoctor.evidence.section import Evidence
from ddoctor.models import Verdict
from ddoctor.report import terminal
from tests.report import sample


def lines(name: str, width: int = 80, *, colour: bool = False) -> list[str]:
    text = StringIO()
    report, evidence = sample.SAMPLES[name]()
    console = Console(
        file=text, width=width, force_terminal=colour, color_system="truecolor" if colour else None
    )
    terminal.render(report, evidence, console)
    return text.getvalue().splitlines()


@pytest.mark.parametrize("name", ["sick", "healthy", "two-hosts", "incomplete", "nothing"])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_lines_fit_and_have_no_tail(name: str, width: int) -> None:
    for line in lines(name, width):
        assert line == line.rstrip()
        assert len(line) <= min(width, terminal.WIDEST) or len(line.split()) == 1, line


def test_the_order_is_verdict_facts_findings_notes_and_what_was_left_out() -> None:
    text = "\n".join(lines("sick"))
    places = [
        text.index(words)
        for words in (
            "3 findings, 1 note: start with finding 1",
            "all-reduce      289 GB/s busbw at 1 GiB (healthy: about 466)",
            "1. error: A GPU slows itself down because of heat",
            "2. warning: A GPU's power limit",
            "3. warning: An environment variable",
            "4. note: A debug switch",
            "skipped",
            "not seen",
        )
    ]
    assert places == sorted(places)


def test_a_finding_is_complete() -> None:
    text = "\n".join(lines("sick"))
    for words in (
        "node-1, rank 3, cuda:3 · certain · costs 43 % of the step",
        "matmul of rank 3  405 TFLOP/s          expected 712 TFLOP/s",
        "median of the other seven",
        "caution: the global batch shrinks by an eighth",
        "verified: 0.912 → 0.604 s/step (-34 %)",
        "also explains: uneven-gpu-speed, collective-slow-for-hardware",
        "more: ddoctor explain gpu-thermal-throttling",
    ):
        assert words in text


def test_what_is_to_be_pasted_stands_alone_and_is_never_wrapped() -> None:
    text = lines("hostile", 60)
    (paste,) = (line for line in text if "echo '<script>" in line)
    assert paste.endswith("x" * 300)
    assert "       torchrun --standalone --nproc-per-node=7 train.py" in lines("sick", 60)


def test_rows_of_one_source_name_it_once() -> None:
    source = "a source whose name is too long to stand beside the rows of a table"
    rows = tuple(
        sample.observation(f"figure {number}", number, "GB/s", 10, source) for number in range(3)
    )
    report = sample.report(replace(sample.CAPPED, evidence=rows), verdict=Verdict.FINDINGS)
    text = StringIO()
    terminal.render(report, Evidence(), Console(file=text, width=80))
    assert text.getvalue().count(source) == 1
    assert text.getvalue().count("expected 10 GB/s") == 3


def test_a_command_in_running_text_stays_on_one_line() -> None:
    text = "\n".join(lines("sick"))
    assert "`ddoctor doctor --probe storage_read --data FOLDER`" in text


def test_a_note_is_shorter_than_a_finding() -> None:
    text = "\n".join(lines("sick"))
    note = text[text.index("note: A debug") : text.index("skipped")]
    assert "unset NCCL_DEBUG" in note
    assert "INFO  " not in note, "its evidence is left to the other faces"
    assert len(note.splitlines()) < 10


def test_an_unfinished_examination_says_what_failed_and_what_was_skipped() -> None:
    text = "\n".join(lines("incomplete"))
    assert text.startswith("incomplete: 2 parts of the examination failed; 1 finding")
    assert "  probe allreduce: hung: rank 1 did not answer for 30 s" in text
    assert "  4 checks need gpus evidence: no NVIDIA driver on this machine" in text


def test_nothing_that_a_machine_says_steers_the_terminal() -> None:
    text = "\n".join(lines("hostile"))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\N{REPLACEMENT CHARACTER}[2J" in text


def test_colour_adds_nothing_to_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = lines("sick")
    coloured = "\n".join(lines("sick", colour=True))
    assert "\x1b[1;31m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    quiet = "\n".join(lines("sick", colour=True))
    assert "31m" not in quiet
    for text in (coloured, quiet):
        assert "".join(_without_styles(text)) == "\n".join(plain)


def _without_styles(text: str) -> list[str]:
    first, *others = text.split("\x1b[")
    return [first, *(part.partition("m")[2] for part in others)]
