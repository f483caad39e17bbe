"""Scripts that do what is not expected of them, and words that make no sense."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from ddoctor.evidence.training import TrainingRun
from tests.training.conftest import LIMIT_SECONDS, TORCHRUN, UNDER, MakeTraining

# One process, a bare model; what comes before and after is the case's own.
LOOP = """
class Net(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.005)
        return super().forward(x)
model = Net(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
HEAD = "import os, signal, subprocess, sys, time\nimport torch\nSTEPS = 100_000\n"


def alone(*words: str) -> tuple[str, ...]:
    return (sys.executable, *UNDER, "--no-prove", *words)


@pytest.mark.ward
def test_one_process_without_a_launcher(training: MakeTraining) -> None:
    script = training(HEAD + LOOP)
    with script.started(*alone("--steps=20", "train.py")) as process:
        trained = script.outcome(process)
    assert trained.exit_code == 0, trained.stderr
    assert "healthy" in trained.stdout


@pytest.mark.ward
def test_no_optimizer_step_is_said_after_the_time(training: MakeTraining) -> None:
    script = training("import time\nimport torch\ntime.sleep(1000)\n")
    trained = script.recorded("--seconds=5")
    assert "exitcode  : 2" in trained.stderr
    assert trained.told["verdict"] == "incomplete"
    assert "no optimizer took a step" in trained.stdout
    assert trained.left == []


@pytest.mark.ward
def test_short_first_steps_do_not_put_off_the_end(training: MakeTraining) -> None:
    """As on a GPU, where the host is ahead: many of these steps would still fit the time."""
    slow = "\n    if time.perf_counter() - began > 4: time.sleep(0.3); print('slow', flush=True)"
    loop = LOOP.replace("time.sleep(0.005)", "pass") + slow
    script = training(HEAD + "began = time.perf_counter()" + loop)
    with script.started(*alone("--steps=90000", "--seconds=10", "train.py")) as process:
        trained = script.outcome(process)
    assert "10 s were over" in trained.stdout, trained.stderr
    # It stops within 20 slow steps, the last ones that are looked at, and was 60 s late before.
    assert trained.stdout.count("slow") < 120


def test_a_script_that_ends_before_its_steps(training: MakeTraining) -> None:
    script = training(HEAD + "STEPS = 15\n" + LOOP)
    with script.started(*alone("--steps=500", "train.py")) as process:
        trained = script.outcome(process)
    assert "15" in trained.stdout
    assert "Traceback" not in trained.stderr


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)", id="deaf", marks=pytest.mark.ward
        ),
        pytest.param(
            "signal.signal(signal.SIGINT, lambda *_: print('asked'))",
            id="own handler",
            marks=pytest.mark.ward,
        ),
        pytest.param(
            "child = os.fork()\nif not child: time.sleep(0.5); os._exit(0)",
            id="forks",
            marks=pytest.mark.ward,
        ),
        pytest.param(
            "subprocess.run([sys.executable, '-c', 'import torch'])",
            id="starts another",
            marks=pytest.mark.ward,
        ),
        pytest.param(
            "if 'AGAIN' not in os.environ:\n"
            "    os.environ['AGAIN'] = '1'\n"
            "    os.execv(sys.executable, [sys.executable, *sys.argv])",
            id="executes itself",
            marks=pytest.mark.ward,
        ),
    ],
)
def test_it_is_stopped_nonetheless(training: MakeTraining, head: str) -> None:
    script = training(f"{HEAD}{head}\n{LOOP}")
    with script.started(*alone("--steps=20", "--seconds=20", "train.py")) as process:
        trained = script.outcome(process)
    assert "Traceback" not in trained.stderr
    assert trained.exit_code in (0, 2), trained.stderr
    assert trained.left == []


@pytest.mark.ward
def test_its_own_words_stay_its_own(training: MakeTraining) -> None:
    script = training(
        "import json, sys\njson.dump(sys.argv[1:], open('words.json', 'w'))\n" + HEAD + LOOP,
    )
    its_own = ("--steps=3", "--json=x", "--", "run", "-m")
    with script.started(*alone("--steps=20", "train.py", *its_own)) as process:
        trained = script.outcome(process)
    assert trained.exit_code == 0, trained.stdout
    written = (script.script.parent / "words.json").read_text()
    assert written == '["--steps=3", "--json=x", "--", "run", "-m"]'
    assert not (script.script.parent / "x").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--steps", "0", "train.py"), "--steps"),
        pytest.param(("--seconds", "-1", "train.py"), "--seconds", marks=pytest.mark.ward),
        pytest.param(("--stps", "3", "train.py"), "--stps", marks=pytest.mark.ward),
        (("nowhere.py",), "nowhere.py"),
        pytest.param((), "train.py", marks=pytest.mark.ward),
        (("--json", "no/such/folder/r.json", "train.py"), "no/such/folder"),
    ],
)
def test_one_line_says_what_is_wrong(
    training: MakeTraining, words: tuple[str, ...], told: str
) -> None:
    script = training(HEAD + LOOP)
    with script.started(*TORCHRUN, *UNDER, *words) as process:
        trained = script.outcome(process)
    (complaint,) = trained.complaints
    assert told in complaint
    assert "exitcode  : 2" in trained.stderr
    assert trained.left == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "--steps", "0", "train.py"), "--steps"),
        pytest.param(("--burn", "0"), "--burn", marks=pytest.mark.ward),
    ],
)
def test_it_is_said_although_rank_0_comes_last(
    training: MakeTraining,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
    told: str,
) -> None:
    script = training(HEAD + LOOP)
    late = "import os, time\nif os.environ.get('RANK') == '0': time.sleep(3)\n"
    (tmp_path / "sitecustomize.py").write_text(late)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with script.started(*TORCHRUN, "-m", "ddoctor.probe", *words) as process:
        trained = script.outcome(process)
    assert told in trained.stderr
    assert "exitcode  : 2" in trained.stderr


@pytest.mark.ward
def test_a_script_of_a_process_group_of_its_own(training: MakeTraining) -> None:
    """``mp.spawn`` starts processes that ddoctor does not record; the report says so."""
    script = training(
        """
        import time
        import torch
        def train(rank):
            model = torch.nn.Linear(8, 8)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for step in range(100):
                model(torch.randn(8, 8)).sum().backward()
                optimizer.step()
                time.sleep(0.01)
        if __name__ == "__main__":
            torch.multiprocessing.spawn(train, nprocs=2)
        """
    )
    with script.started(*alone("--steps=20", "--json=report.json", "train.py")) as process:
        trained = script.outcome(process)
    assert trained.told["verdict"] == "incomplete"
    assert trained.exit_code == 2


UPLOAD = """
if os.environ["RANK"] == "0":
    command = "for part in $(seq 300); do echo part $part >&2; sleep 0.02; done; echo > uploaded"
    subprocess.Popen(["sh", "-c", command], start_new_session=True)
"""


@pytest.mark.ward
def test_what_a_script_leaves_running_comes_to_its_end(
    training: MakeTraining, tmp_path: Path
) -> None:
    script = training(HEAD + "STEPS = 15\n" + LOOP + UPLOAD)
    with script.started(*script.under("--no-prove", "--steps=500")) as process:
        _, stderr = process.communicate(timeout=LIMIT_SECONDS)
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (tmp_path / "uploaded").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (tmp_path / "uploaded").exists()
    # It writes on while ddoctor ends.
    assert [f"part {part}" for part in range(1, 301)] == re.findall("part [0-9]+", stderr)
    assert "ended with the script" not in stderr


@pytest.mark.ward
def test_what_a_script_started_is_ended_where_ddoctor_ends_the_script(
    training: MakeTraining, tmp_path: Path
) -> None:
    script = training(HEAD + UPLOAD.replace("sleep 0.02", "sleep 1000") + LOOP)
    trained = script.recorded("--no-prove", "--steps=20")
    assert trained.left == []
    (told,) = [one for one in trained.complaints if "ended with the script" in one]
    assert "sh (" in told
    assert not (tmp_path / "uploaded").exists()


@pytest.mark.ward
def test_the_run_is_in_the_evidence(training: MakeTraining) -> None:
    script = training(HEAD + "STEPS = 60\n" + LOOP)
    trained = script.recorded("--no-prove", "--steps=20")
    (run,) = trained.evidence.all(TrainingRun)
    assert run.command[0].endswith("train.py")
