from __future__ import annotations

from typing import Any

import pytest

from ddoctor import engine
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.source_facts import SourceReadEarly
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.source_calls import WRAPS
from tests.training_run import echoing, ending, library, raised, run, user

CAUSE = "shared-filesystem-race"
THERE = "[Errno 17] File exists: 'checkpoints/40'"
AWAY = "[Errno 2] No such file or directory: 'tmp-40' -> '40'"
FULL = "[Errno 39] Directory not empty: 'tmp-40' -> '40'"
MKDIR = (user(71, 'os.mkdir("checkpoints/40")'),)


def failing(
    exception: str, message: str, *stack: Frame, rank: int = 1, **fields: Any
) -> RankEnding:
    return raised(rank, exception, message, stack=stack or MKDIR, **fields)


@pytest.mark.parametrize(
    ("exception", "message", "stack"),
    [
        ("FileExistsError", THERE, MKDIR),
        (
            "FileExistsError",
            THERE,
            (user(71, "path.mkdir()"), library("pathlib.py", 1116, "mkdir")),
        ),
        ("OSError", FULL, (user(71, "save(model)"), user(30, "os.rename(working, path)", "save"))),
        ("FileNotFoundError", AWAY, (user(71, "os.replace(working, path)"),)),
        (
            "FileNotFoundError",
            AWAY,
            (user(71, "clean()"), library("shutil.py", 730, "rmtree")),
        ),
    ],
)
def test_who_comes_late(
    findings: Findings, exception: str, message: str, stack: tuple[Frame, ...]
) -> None:
    (finding,) = findings(CAUSE, run(ending(0, "stopped"), failing(exception, message, *stack)))
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (1,)
    assert f"rank 1 (pid 101 on a) raised {exception}: {message}" in finding.because
    assert "another rank did the same just before" in finding.because
    assert "exist_ok=True" in finding.fixes[1].paste


def test_it_is_what_the_death_and_the_echoes_come_from() -> None:
    section = run(echoing(0), failing("FileExistsError", THERE), echoing(2))
    (finding,) = engine.examine(Evidence([section]), "run").findings
    assert finding.cause == CAUSE
    assert "dead-rank" in finding.consequences


def test_a_log_knows_those_alone_who_are_gone(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(failing("FileExistsError", THERE), log="train.log"))
    assert "according to train.log" in finding.because


@pytest.mark.parametrize(
    "section",
    [
        run(ending(0, "stopped"), ending(1, "stopped")),
        # It was there before all of them; it was never there; another error; another line.
        run(*(failing("FileExistsError", THERE, rank=rank) for rank in (0, 1))),
        run(
            ending(0, "stopped"),
            failing("FileNotFoundError", "[Errno 2] x", user(71, "open('data.bin')")),
        ),
        run(ending(0, "stopped"), failing("OSError", "[Errno 28] No space left on device")),
        run(ending(0, "stopped"), failing("FileExistsError", THERE, user(71, "open(path, 'x')"))),
        run(ending(0, "stopped"), failing("ValueError", "cannot move to a negative step")),
    ],
)
def test_is_quiet(findings: Findings, section: TrainingRun) -> None:
    assert findings(CAUSE, section) == ()


SAVED = SourceLine(file="train.py", line=26, text='torch.save(net.state_dict(), "init.pt")')
READ = SourceLine(file="train.py", line=27, text='net.load_state_dict(torch.load("init.pt"))')


def test_a_file_that_is_read_before_it_is_complete(findings: Findings) -> None:
    early = SourceReadEarly(at=READ, save=SAVED)
    script = Script(files=("train.py",), calls=(WRAPS,), read_too_early=(early,))
    (finding,) = findings(CAUSE, script)
    assert finding.severity is Severity.WARNING
    assert "all ranks read at train.py:27" in finding.because
    failed = failing("FileNotFoundError", "[Errno 2] x", user(27, "torch.load('init.pt')"))
    (finding,) = findings(CAUSE, script, run(ending(0, "stopped"), failed))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.because.startswith("rank 1 (pid")
    elsewhere = failing("FileNotFoundError", "[Errno 2] x", user(71, "open('data.bin')"))
    (finding,) = findings(CAUSE, script, run(ending(0, "stopped"), elsewhere))
    assert finding.severity is Severity.WARNING
    assert findings(CAUSE, Script(files=("train.py",), calls=(WRAPS,))) == ()
