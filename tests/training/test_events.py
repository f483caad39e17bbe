"""What happens in a long run is told to a file and to a command, whatever becomes of these."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

import msgspec
import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence.run_history import RunEvent
from ddoctor.training.events import Events, check, line


def slower(step: int) -> RunEvent:
    return RunEvent(event="slower", step=step, before=0.02, after=0.03, phase="loader", ranks=(3,))


def test_an_event_is_a_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"event": "of an earlier attempt"}\n')
    events = Events(file, "", attempt=2)
    events.tell(slower(1204))
    events.tell(RunEvent(event="recovered", step=1300, after=0.02, lost_seconds=1.0))
    _, first, recovered = map(json.loads, file.read_text().splitlines())
    assert first["event"] == "slower"
    assert first["step"] == 1204
    assert first["attempt"] == 2
    assert first["ranks"] == [3]
    assert recovered["lost_seconds"] == 1.0
    assert [one.event for one in events.all] == ["slower", "recovered"]


def test_the_command_gets_the_event_on_stdin(tmp_path: Path) -> None:
    got = tmp_path / "got"
    events = Events(None, f"{sys.executable} -c {shlex.quote(COPY)} {got}", attempt=0)
    events.tell(slower(7))
    until = time.monotonic() + 30
    while not got.exists() and time.monotonic() < until:
        time.sleep(0.05)
    events.close()
    assert json.loads(got.read_text())["step"] == 7


COPY = "import sys, os; open(sys.argv[1] + '.new', 'w').write(sys.stdin.read()); " + (
    "os.replace(sys.argv[1] + '.new', sys.argv[1])"
)


@pytest.mark.parametrize(
    "command", ["/nowhere/notify", "false", pytest.param("sleep 100", marks=pytest.mark.ward)]
)
def test_a_command_that_fails_or_takes_long_disturbs_nothing(command: str) -> None:
    events = Events(None, command, attempt=0)
    began = time.monotonic()
    for step in range(20):
        events.tell(slower(step))
    assert len(events.all) == 20
    assert time.monotonic() - began < 60
    events.close()


def test_a_full_disk_disturbs_nothing() -> None:
    events = Events(Path("/dev/full"), "", attempt=0)
    events.tell(slower(7))
    assert len(events.all) == 1


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_leaves_out_the_terminal_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], *, quiet: bool
) -> None:
    file = tmp_path / "events.jsonl"
    Events(file, "", attempt=0, quiet=quiet).tell(slower(7))
    assert json.loads(file.read_text())["step"] == 7
    assert (capfd.readouterr().err == "") == quiet


def test_no_secret_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "events.jsonl"
    secret = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0cD3f"
    event = RunEvent(event="cause", step=7, cause="x", title=f"--hf-token {secret}")
    Events(file, "", attempt=0).tell(event)
    assert secret not in file.read_text()
    assert secret not in capfd.readouterr().err
    assert "--hf-token" in file.read_text()


@pytest.mark.parametrize(
    ("file", "command", "told"),
    [
        ("/nowhere/events.jsonl", "", "cannot write /nowhere/events.jsonl: No such file"),
        ("/proc", "", "cannot write /proc: Is a directory"),
        (None, "notify 'one", "--on-event: No closing quotation"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(
    file: str | None, command: str, told: str
) -> None:
    with pytest.raises(DoctorError, match=told):
        check(Path(file) if file else None, command)


def test_what_works_is_not_refused(tmp_path: Path) -> None:
    check(tmp_path / "events.jsonl", "notify.sh --to 'some one'")
    check(None, "")


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (
            slower(1204),
            "since step 1,204 a step takes 30.0 ms instead of 20.0 ms; what grew: loader on rank 3",
        ),
        (
            msgspec.structs.replace(slower(3), others=0.62),
            "since step 3 a step takes 30.0 ms instead of 20.0 ms; what grew: loader on rank 3; "
            "others than the ranks use 0.62 CPUs more than before",
        ),
        (
            RunEvent(event="cause", step=9, cause="x", title="Slow", fix="y"),
            "slower since step 9: Slow; fix: y",
        ),
        (
            RunEvent(event="hung", step=9, lost_seconds=31.0),
            "no step after step 9 for 31.0 s",
        ),
        (
            RunEvent(event="recovered", step=9, lost_seconds=7.25),
            "since step 9 steps are as fast as before again; it cost 7.25 s",
        ),
    ],
)
def test_an_event_in_words(event: RunEvent, told: str) -> None:
    assert line(event) == told
