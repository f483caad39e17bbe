"""`ddoctor run --steps all`: real trainings, followed to their own end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence.run_history import RunHistory
from ddoctor.options import parse, words
from ddoctor.training.options import RunOptions
from tests.training.conftest import TORCHRUN, UNDER, MakeTraining, Trained

TRAIN = """
    import os, sys, time
    import torch, torch.distributed as dist

    rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    # In the store of torchrun, gloo finds the addresses of the attempt before.
    store = f"file://{{os.path.dirname(__file__)}}/store-{{os.environ['MASTER_PORT']}}-{{attempt}}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def sick(step):
        {sick}

    for step in range({steps}):
        time.sleep({seconds})
        sick(step)
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    os.write(1, f"{{rank}} {{loss.item()}}\\n".encode())
    dist.barrier()
    # At Python's exit, gloo aborts at times.
    os._exit(0)
"""
SLOW = "if 150 <= step < 330 and rank == 1: time.sleep(0.04)"
HANGS = "if step == 60 and rank == 1: time.sleep(10_000)"
KEEPS_A_LOCK = """if step == 60 and rank == 1:
            import threading
            lock = threading.Lock()
            def keep():
                with lock:
                    time.sleep(10_000)
            threading.Thread(target=keep, daemon=True).start()
            time.sleep(1)
            with lock:
                pass"""


def script(sick: str, steps: int = 100, seconds: float = 0.02) -> str:
    return TRAIN.format(sick=sick, steps=steps, seconds=seconds)


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def followed(folder: Path, *more: str) -> Sequence[str]:
    return ("--steps=all", f"--events={folder / 'events.jsonl'}", *more)


def history(trained: Trained) -> RunHistory:
    (found,) = trained.evidence.all(RunHistory)
    return found


@pytest.mark.ward
def test_a_sound_run_is_as_without_ddoctor_and_has_no_event(
    training: MakeTraining, tmp_path: Path
) -> None:
    one = training(script("pass", seconds=0.01))
    bare = one.bare()
    trained = one.recorded(*followed(tmp_path))
    assert trained.exit_code == bare.exit_code == 0
    assert sorted(bare.stdout.splitlines()) == sorted(trained.stdout.splitlines()[:2])
    assert [event["event"] for event in told(tmp_path)] == ["ended"]
    found = history(trained)
    assert [rank.rank for rank in found.ranks] == [0, 1]
    for rank in found.ranks:
        assert (rank.stretches[0].first, rank.stretches[-1].last) == (1, 98)
    assert not trained.left


@pytest.mark.ward
def test_a_rank_that_becomes_slower_and_recovers(training: MakeTraining, tmp_path: Path) -> None:
    trained = training(script(SLOW, 600)).recorded(*followed(tmp_path))
    assert trained.exit_code == 0
    slower, *rest = told(tmp_path)
    assert slower["event"] == "slower"
    assert abs(slower["step"] - 149) <= 5
    assert slower["ranks"] == [1]
    assert slower["phase"] == "rest"
    assert slower["after"] > 1.5 * slower["before"]
    recovered = next(event for event in rest if event["event"] == "recovered")
    assert abs(recovered["step"] - 329) <= 5
    assert recovered["lost_seconds"] == pytest.approx(180 * 0.04, rel=0.3)


@pytest.mark.ward
def test_the_cause_of_a_slowdown_that_lasts(training: MakeTraining, tmp_path: Path) -> None:
    sick = SLOW.replace("< 330", "< 10_000")
    trained = training(script(sick, 600)).recorded(*followed(tmp_path))
    cause = next(event for event in told(tmp_path) if event["event"] == "cause")
    assert cause["cause"] == "straggler-rank"
    assert cause["ranks"] == [1]
    assert trained.exit_code == 0


@pytest.mark.ward
def test_a_hang_is_told_while_it_stands_and_ended_only_if_asked(
    training: MakeTraining, tmp_path: Path
) -> None:
    one = training(script(HANGS))
    with one.started(*one.under(*followed(tmp_path))) as process:
        until = time.monotonic() + 120
        file = tmp_path / "events.jsonl"
        while not (file.exists() and file.read_text()) and time.monotonic() < until:
            assert process.poll() is None
            time.sleep(0.5)
        (hung,) = told(tmp_path)
        assert hung["cause"] == "rank-stuck-outside-collective"
        assert hung["ranks"] == [1]
        assert 30 <= hung["lost_seconds"] < 60
        # Its report is there, and it still stands.
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["findings"][0]["cause"] == "rank-stuck-outside-collective"
        time.sleep(3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        trained = one.outcome(process)
    assert trained.exit_code != 0
    assert not trained.left


@pytest.mark.ward
def test_a_hang_is_ended_if_asked(training: MakeTraining, tmp_path: Path) -> None:
    trained = training(script(KEEPS_A_LOCK)).recorded(*followed(tmp_path, "--end-hung"))
    assert trained.exit_code == 1
    assert trained.first["cause"] == "rank-stuck-outside-collective"
    assert "(`with lock:`), and is at" in trained.first["because"]
    assert "(`time.sleep(10_000)`)" in trained.first["because"]
    assert not trained.left


@pytest.mark.ward
def test_each_attempt_has_its_report(training: MakeTraining, tmp_path: Path) -> None:
    fails = "if step == 40 and rank == 0 and attempt == '0': raise ValueError('no more data')"
    one = training(script(fails))
    options = (f"--json={tmp_path / 'report.json'}", *followed(tmp_path))
    command = (*TORCHRUN, "--max-restarts=1", *UNDER, *options, str(one.script))
    with one.started(*command) as process:
        trained = one.outcome(process)
    assert trained.exit_code == 0
    assert trained.first["cause"] == "dead-rank"
    second = json.loads((tmp_path / "report.attempt-1.json").read_text())
    assert all(finding["severity"] != "error" for finding in second["findings"])
    assert [(event["attempt"], event["event"]) for event in told(tmp_path)] == [
        (0, "ended"),
        (1, "ended"),
    ]


@pytest.mark.ward
def test_a_handler_of_sigterm_saves_its_checkpoint(training: MakeTraining, tmp_path: Path) -> None:
    saves = "pass"
    source = script(saves, 10_000).replace(
        "    for step in range",
        "    import signal\n"
        "    def save(*_):\n"
        "        open(f'saved-{rank}', 'w').close()\n"
        "        os._exit(0)\n"
        "    signal.signal(signal.SIGTERM, save)\n"
        "    for step in range",
        1,
    )
    one = training(source)
    with one.started(*one.under(*followed(tmp_path))) as process:
        time.sleep(12)
        process.send_signal(signal.SIGTERM)
        trained = one.outcome(process)
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-0", "saved-1"}
    assert trained.report is not None
    assert not trained.left


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--steps", "none"), "'none' is neither a number of steps above 0 nor all"),
        (("--steps", "0"), "'0' is neither a number of steps above 0 nor all"),
        (("--steps", "-3"), "'-3' is neither a number of steps above 0 nor all"),
        (("--events", "e.jsonl"), "--events needs --steps all"),
        (("--on-event", "notify"), "--on-event needs --steps all"),
        (("--prometheus", "9400"), "--prometheus needs --steps all"),
        (("--end-hung",), "--end-hung needs --steps all"),
        (("--quiet",), "--quiet needs --steps all"),
        (("--steps", "all", "--prove"), "--prove runs the script again"),
        (("--steps", "all", "--memory"), "--memory runs the script again"),
    ],
)
def test_options_that_exclude_or_need_each_other(options: Sequence[str], complaint: str) -> None:
    with pytest.raises(DoctorError, match=complaint):
        asked(*options).check()


@pytest.mark.parametrize(
    "options",
    [
        ("--steps", "all", "--events", "e.jsonl", "--on-event", "notify", "--end-hung"),
        ("--steps", "all", "--quiet"),
        ("--steps", "20"),
        (),
    ],
)
def test_options_that_go_together(options: Sequence[str]) -> None:
    one = asked(*options)
    one.check()
    # As rank 0's host gets them from the launch command.
    assert asked(*words(RunOptions, one)) == one


def asked(*options: str) -> RunOptions:
    found = parse(RunOptions, options, "ddoctor run")
    assert found is not None
    return found


@pytest.mark.parametrize(("number", "named"), [(0, "report.json"), (1, "report.attempt-1.json")])
def test_the_files_of_an_attempt(number: int, named: str) -> None:
    one = asked("--steps", "all", "--json", "a/report.json", "--html", "-").of_attempt(number)
    assert one.json == Path("a") / named
    assert str(one.html) == "-"


@pytest.mark.ward
@pytest.mark.parametrize("options", [("--on-event", "a 'b"), ("--events", "/nowhere/e")])
def test_what_cannot_be_told_is_refused_before_the_run(
    training: MakeTraining, options: tuple[str, ...]
) -> None:
    trained = training("print('trained')").recorded("--steps=all", *options)
    assert trained.exit_code != 0
    assert "trained" not in trained.stdout
    assert len(trained.complaints) == 1
