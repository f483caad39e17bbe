"""The timeline of a failure: of recorded runs and of logs, in each format."""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import StringIO

from msgspec.structs import replace
from rich.console import Console

from ddoctor.evidence.log import Excerpt, LastLine, Log
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Observation, Report, Severity, Verdict
from ddoctor.report import html, markdown, terminal
from ddoctor.report.timeline import MOST, NOT_ORDERED, Timeline, timeline
from tests.logged import event
from tests.report import sample, training_sample

LOST = "[127.0.0.1]:4711: Connection closed by peer"
QUIET = sample.report(verdict=Verdict.HEALTHY)


def fell(rank: int, message: str = "'cat'", *, place: str = "", time: float = 0.0) -> RankEnding:
    lost = message.endswith("closed by peer")
    return RankEnding(
        rank=rank,
        host="",
        pid=0,
        outcome="failed",
        steps=0,
        exception="RuntimeError" if lost else "KeyError",
        message=message,
        time=time,
        logged=place or f"train.log:{rank}",
    )


def in_a_log(
    *ranks: RankEnding, excerpts: Iterable[Excerpt] = (), ordered: bool = True
) -> Evidence:
    run = TrainingRun(command=(), seconds=0.0, ranks=ranks, log="train.log", ordered=ordered)
    return Evidence([run, Log(files=("train.log",), lines=9, excerpts=tuple(excerpts))])


def excerpt(place: str, *, time: float | None = None, text: str = "it failed") -> Excerpt:
    file, _, line = place.rpartition(":")
    lines = ("step 1", text, "step 2")
    return Excerpt(file=file, line=int(line), first=int(line) - 1, lines=lines, time=time)


def told(found: Timeline) -> list[tuple[str, str]]:
    return [(row.who, row.what) for row in found.rows]


def printed(report: Report, evidence: Evidence) -> str:
    console = Console(file=StringIO(), width=100)
    terminal.render(report, evidence, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_recorded_run_tells_of_each_rank_the_first_one_first() -> None:
    evidence = training_sample.failed()
    table = timeline(QUIET, evidence).table
    assert table.head == ("rank", "what happened", "at", "steps", "message", "line")
    first, second = table.rows
    assert first[:4] == ("rank 1", "failed first", "9.1 s", "21")
    assert first[4].startswith("torch.OutOfMemoryError: CUDA out of memory.")
    assert first[5] == "`train.py:41 loss = criterion(model(images), labels)`"
    assert second[:2] == ("rank 0", "hung in all_reduce for 29.8 s")
    assert "Timeline of the failure</h2>" in html.render(QUIET, evidence)
    assert "| rank 1 | failed first | 9.1 s | 21 |" in markdown.render(QUIET, evidence)
    assert "timeline" not in printed(QUIET, evidence)


def test_a_run_that_ended_as_asked_has_none() -> None:
    assert timeline(QUIET, training_sample.late_rank()).rows == ()
    finished = replace(training_sample.ending(1), outcome="finished")
    assert timeline(QUIET, Evidence([training_sample.run(2, finished)])).rows == ()
    silent = LastLine(rank=0, text="step 9", file="train.log", line=9)
    assert (
        timeline(QUIET, Evidence([Log(files=("train.log",), lines=9, last=(silent,))])).rows == ()
    )


def test_thousands_of_ranks_that_did_the_same_share_a_row() -> None:
    lost = (fell(rank, LOST.replace("4711", str(rank))) for rank in range(4096) if rank != 7)
    found = timeline(QUIET, in_a_log(*lost, fell(7)))
    assert told(found) == [
        ("rank 7", "failed first"),
        ("ranks 0-6, 8-4095", "lost the connection to another rank"),
    ]
    assert found.more == 0


def test_of_many_different_failures_the_first_ones_are_shown() -> None:
    names = "abcdefghijklmnopqrstuvwxyz"
    found = timeline(QUIET, in_a_log(*(fell(rank, name) for rank, name in enumerate(names))))
    assert [row.who for row in found.rows] == [f"rank {rank}" for rank in range(MOST)]
    assert found.more == len(names) - MOST


def test_times_order_what_stands_in_several_files() -> None:
    ranks = (fell(0, "a", place="a.log:9"), fell(1, "b", place="b.log:3"))
    times = (excerpt("a.log:9", time=200.0), excerpt("b.log:3", time=100.0))
    found = timeline(QUIET, in_a_log(*ranks, excerpts=times))
    assert told(found) == [("rank 1", "failed first"), ("rank 0", "failed")]
    assert [row.at for row in found.rows] == ["00:01:40", "00:03:20"]
    assert found.note == ""


def test_without_times_no_rank_is_called_the_first() -> None:
    ranks = (fell(0, "a", place="a.log:9"), fell(1, "b", place="b.log:3"))
    times = (excerpt("a.log:9"), excerpt("b.log:3", time=100.0))
    found = timeline(QUIET, in_a_log(*ranks, excerpts=times, ordered=False))
    assert told(found) == [("rank 0", "failed"), ("rank 1", "failed")]
    assert found.note == NOT_ORDERED
    assert NOT_ORDERED in " ".join(printed(QUIET, in_a_log(*ranks, ordered=False)).split())


def test_how_the_others_learned_of_it() -> None:
    late = fell(2, "wait timeout after 300000ms")
    late = replace(late, exception="RuntimeError")
    asked = replace(fell(3), exception="", message="", outcome="killed", exit_code=-15)
    silent = LastLine(rank=4, text="step 9", file="train.log", line=2)
    heard = event("watchdog", text="Watchdog caught …", rank=5, operation="ALLREDUCE")
    log = Log(files=("train.log",), lines=9, events=(heard,), last=(silent,))
    run = TrainingRun(
        command=(), seconds=0.0, ranks=(fell(0), fell(1, LOST), late, asked), log="train.log"
    )
    found = timeline(QUIET, Evidence([run, log]))
    assert told(found) == [
        ("rank 0", "failed first"),
        ("rank 3", "ended by SIGTERM after the failure"),
        ("rank 1", "lost the connection to another rank"),
        ("rank 2", "timed out waiting for another rank"),
        ("rank 5", "timed out waiting for another rank"),
        ("rank 4", "no end in the log, last line"),
    ]
    assert found.rows[4].doing == "allreduce"


def test_the_lines_of_a_cause_are_in_it_and_those_of_a_note_are_not() -> None:
    events = (event("device-ordinal", rank=1), replace(event("nccl-network"), line=8))
    log = Log(files=("train.log",), lines=9, events=events)
    finding = Finding(
        cause="wrong-device",
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        title="A process uses another GPU",
        because="it does",
        evidence=(Observation(name=events[0].place, value=events[0].text),),
    )
    found = timeline(sample.report(finding, verdict=Verdict.FINDINGS), Evidence([log]))
    assert told(found) == [("rank 1", "reported")]


def test_a_single_line_that_names_nobody_is_not_shown_twice() -> None:
    nobody = in_a_log(fell(-1), excerpts=[excerpt("train.log:-1")])
    assert told(timeline(QUIET, nobody)) == [("not named", "failed")]
    assert "timeline" not in printed(QUIET, nobody)
    assert "timeline" in printed(QUIET, in_a_log(fell(3)))


HOSTILE = "\x1b[31m<script>alert(1)</script> ``` [x](http://a.b) \x07"


def test_excerpts_are_linked_and_harmless() -> None:
    evidence = in_a_log(fell(3), excerpts=[excerpt("train.log:3", text=HOSTILE)])
    page = html.render(QUIET, evidence)
    (link,) = re.findall(r'<a href="#([^"]+)">train\.log:3</a>', page)
    assert f'id="{link}"' in page
    assert "&lt;script&gt;alert(1)" in page
    told = markdown.render(QUIET, evidence)
    assert "````text\n  2  step 1\n> 3" in told
    screen = printed(QUIET, evidence)
    assert "> 3" in screen
    assert "alert(1)</script>" not in page
    assert not any(sign in one for sign in "\x1b\x07" for one in (page, told, screen))
