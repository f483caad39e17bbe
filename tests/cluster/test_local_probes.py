"""Two ranks on gloo: what was measured survives whatever happens to a rank."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from ddoctor.cluster import local_probes
from ddoctor.evidence.probes import ProbeRuns, StorageRead
from ddoctor.evidence.section import Section
from ddoctor.proc import processes

ROOT = Path(__file__).parent.parent.parent
LIMIT = 120.0

SOUND, LATE, RAISING = "tests.faulty.sound", "tests.faulty.late", "tests.faulty.raising"
LEAVING, SLOW = "tests.faulty.leaving", "tests.faulty.slow"

Launch = Callable[..., tuple[ProbeRuns, tuple[Section, ...]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Launch]:
    """Launch probes of ``tests/faulty``; afterwards no process may be left."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    mark = {"DDOCTOR_TEST_LOCAL_PROBES": uuid.uuid4().hex}
    for variable, value in mark.items():
        monkeypatch.setenv(variable, value)
    before = set(psutil.Process().children(recursive=True))

    def launched(
        names: Sequence[str],
        *,
        limit: float = LIMIT,
        started: Callable[[str], None] = lambda name: None,
    ) -> tuple[ProbeRuns, tuple[Section, ...]]:
        *measured, runs = local_probes.measure(names, limit=limit, data=tmp_path, started=started)
        assert isinstance(runs, ProbeRuns)
        assert [one.probe for one in runs.runs] == list(names)
        return runs, tuple(measured)

    yield launched
    assert set(psutil.Process().children(recursive=True)) <= before
    assert processes.carrying(**mark) == []


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


def ranks() -> list[psutil.Process]:
    """The processes of the ranks, in their order."""
    children = psutil.Process().children(recursive=True)
    found = {_environment(one).get("RANK"): one for one in children}
    return [found[rank] for rank in ("0", "1")]


def outcomes(runs: ProbeRuns) -> list[str]:
    return [one.outcome for one in runs.runs]


def test_a_sound_probe_is_measured_by_all_ranks(run: Launch) -> None:
    began: list[str] = []
    runs, measured = run([SOUND], started=began.append)
    assert outcomes(runs) == ["completed"]
    assert (runs.backend, runs.world_size) == ("gloo", 2)
    (section,) = measured
    assert isinstance(section, StorageRead)
    assert section.path == "3"
    assert section.host == runs.host
    assert began == [SOUND]


@pytest.mark.ward
def test_a_stopped_rank_is_named_and_the_rest_is_measured(
    run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_probes, "PROBE_LIMIT_SECONDS", 4.0)
    stopped: list[int] = []

    def stop(name: str) -> None:
        if name == SLOW:
            ranks()[1].send_signal(signal.SIGSTOP)
            stopped.append(1)

    runs, measured = run([SLOW, SOUND], started=stop)
    assert stopped
    assert outcomes(runs) == ["hung", "completed"]
    assert len(measured) == 1
    first = runs.runs[0]
    assert [state.status for state in first.ranks].index("stopped") == 1
    assert f"rank 1 (pid {first.ranks[1].pid}) is stopped" in first.reason
    assert "step" in first.ranks[1].last


def test_a_rank_that_is_behind_is_named(run: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_probes, "PROBE_LIMIT_SECONDS", 4.0)
    runs, _ = run([LATE])
    (hung,) = runs.runs
    assert hung.outcome == "hung"
    assert hung.reason.startswith("rank 1 lags")
    assert hung.ranks[0].last == "the collective"
    assert hung.ranks[1].steps < hung.ranks[0].steps


@pytest.mark.ward
def test_an_error_on_one_rank_is_told_and_the_rest_is_measured(run: Launch) -> None:
    runs, measured = run([RAISING, SOUND])
    assert outcomes(runs) == ["crashed", "completed"]
    assert "rank 1 failed: ValueError: no such luck" in runs.runs[0].reason
    assert len(measured) == 1


@pytest.mark.ward
def test_a_rank_that_leaves_is_told_by_its_exit_code_and_last_words(run: Launch) -> None:
    runs, _ = run([LEAVING])
    (crashed,) = runs.runs
    assert crashed.outcome == "crashed"
    assert crashed.ranks[1].exit_code == 3
    assert crashed.ranks[1].words == "leaving early"


def test_a_killed_rank_is_told_by_its_signal(run: Launch) -> None:
    runs, _ = run([SLOW], started=lambda name: ranks()[1].kill())
    (crashed,) = runs.runs
    assert crashed.outcome == "crashed"
    assert crashed.ranks[1].exit_code == -signal.SIGKILL
    assert "rank 1 was killed by SIGKILL" in crashed.reason


@pytest.mark.ward
def test_an_interruption_keeps_what_was_measured(run: Launch) -> None:
    def interrupt(name: str) -> None:
        if name == SLOW:
            signal.raise_signal(signal.SIGINT)

    runs, measured = run([SOUND, SLOW, LATE], started=interrupt)
    assert outcomes(runs) == ["completed", "interrupted", "interrupted"]
    assert len(measured) == 1


def test_the_limit_holds_even_for_the_start(run: Launch) -> None:
    runs, measured = run([SOUND, SLOW], limit=0.2)
    assert outcomes(runs) == ["hung", "skipped"]
    assert measured == ()
    # How far the ranks come within the limit is the machine's.
    reason = runs.runs[0].reason
    assert any(stage in reason for stage in ("start", "loading torch", "join")), reason


@pytest.mark.ward
def test_an_absent_interface_is_a_crash_with_its_words(
    run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "absent7")
    runs, _ = run([SOUND, SLOW])
    assert outcomes(runs) == ["crashed", "skipped"]
    assert "absent7" in runs.runs[0].reason


@pytest.mark.ward
def test_settings_of_an_outer_launcher_do_not_matter(
    run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PET_NNODES": "4",
        "WORLD_SIZE": "32",
        "RANK": "7",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    runs, _ = run([SOUND])
    assert outcomes(runs) == ["completed"]


@pytest.mark.ward
def test_the_users_own_modules_are_not_imported(
    run: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("queue.py", "utils.py", "json.py", "probes/__init__.py", "checks/__init__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit('the wrong one')\n")
    monkeypatch.chdir(tmp_path)
    runs, _ = run(["memory_bandwidth"])
    assert outcomes(runs) == ["completed"], runs
