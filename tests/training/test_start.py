"""`ddoctor run -- COMMAND`, as it is typed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor.evidence.training import TrainingRun
from tests.test_cli import WITHOUT_TORCH
from tests.training.conftest import MakeTraining

BIN = Path(sys.executable).parent
DDOCTOR = (sys.executable, "-m", "ddoctor", "run")

TRAIN = """
    import time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100_000):
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
"""
ACCELERATED = """
    import time
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(64, 64)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for step in range(100_000):
        accelerator.backward(model(torch.randn(8, 64)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
"""


def run(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DDOCTOR, *words],
        cwd=cwd,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("source", "launcher"),
    [
        pytest.param(
            TRAIN,
            ("torchrun", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2"),
            id="torchrun",
        ),
        pytest.param(
            ACCELERATED,
            ("accelerate", "launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0"),
            id="accelerate",
            marks=pytest.mark.ward,
        ),
    ],
)
def test_a_launch_command_as_it_is(
    training: MakeTraining, source: str, launcher: tuple[str, ...]
) -> None:
    script = training(source)
    ours = ("--no_prove", "--steps", "20", "--json", "report.json", "--bundle=bundle.json")
    same = "--bundle=bundle.json --json=report.json --steps=20 --no-prove"
    command = (str(BIN / launcher[0]), *launcher[1:], "train.py", "--steps=3")
    with script.started(*DDOCTOR, *ours, "--", *command) as process:
        trained = script.outcome(process)
    assert trained.told["command"] == "run", trained.stderr
    # What is found in so small a training is another test's.
    assert trained.exit_code == (1 if trained.alarms else 0)
    assert "where the step goes" in trained.stdout
    (run,) = trained.evidence.all(TrainingRun)
    assert run.command == ("train.py", "--steps=3")
    assert [one.outcome for one in run.ranks] == ["stopped"] * 2
    assert trained.left == []
    # What is executed is shown, to be copied.
    shown = trained.complaints[0].removeprefix("ddoctor: ")
    assert shown.startswith(str(BIN / launcher[0]))
    assert f"-m ddoctor.probe run {same} train.py --steps=3" in shown
    assert "ranks, by " in trained.stderr, "what it starts"


def test_help_fits_80_columns(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path, COLUMNS="80")
    assert done.returncode == 0
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    for option in ("--steps", "--seconds", "--prove", "--no-prove", "--json", "--html", "--bundle"):
        assert option in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "no command to run"),
        ("--", "no command to run"),
        ("--steps 0 -- python train.py", "'--steps'"),
        ("--steps -- python train.py", "--steps"),
        ("--seconds nan -- python train.py", "nan is not a positive number of seconds"),
        ("--prove --no-prove -- python train.py", "--prove and --no-prove exclude each other"),
        ("--nproc-per-node 2 train.py", "--nproc-per-node"),
        ("train.py", "ddoctor run -- python train.py"),
        ("-- python nowhere.py", "there is no script nowhere.py"),
        ("-- torchrun --nproc-per-node 2 nowhere.py", "there is no script nowhere.py"),
        ("--json no/such/report.json -- python train.py", "no/such"),
        ("--json - --markdown - -- python train.py", "stdout"),
        ("-- bash train.sh", "cannot see what bash starts"),
        ("-- no-such-launcher python train.py", "no-such-launcher: No such file or directory"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, words: str, told: str) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('it was started')")
    done = run(*words.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    complaint = done.stderr.splitlines()[-1]
    assert complaint.startswith("ddoctor: ")
    assert told in complaint
    assert "Traceback" not in done.stderr
    assert "it was started" not in done.stderr


def test_of_a_missing_module_python_tells(tmp_path: Path) -> None:
    done = run("--", "python", "-m", "nowhere.at_all", cwd=tmp_path)
    assert done.returncode == 1
    assert "Error while finding module specification for 'nowhere.at_all'" in done.stderr


def test_a_launcher_off_the_path_is_shown_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = run("--", "torchrun", "train.py", cwd=tmp_path, PATH="/nowhere")
    assert done.returncode == 2
    assert f"did you mean {BIN / 'torchrun'}?" in done.stderr


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A Python that has no ddoctor, and a command of its environment."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    torchrun = folder / "torchrun"
    torchrun.write_text(f"#!{python}\n")
    for one in (python, torchrun):
        one.chmod(one.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize("name", ["python3", "torchrun"])
def test_another_environment_without_ddoctor_is_said(
    tmp_path: Path, elsewhere: Path, name: str
) -> None:
    (tmp_path / "train.py").touch()
    done = run("--", name, "train.py", cwd=tmp_path, PATH=f"{elsewhere}:{os.environ['PATH']}")
    assert done.returncode == 2
    (complaint,) = done.stderr.splitlines()
    assert f"ddoctor is not installed for {elsewhere / 'python3'}" in complaint


def test_a_module_is_looked_for_where_it_will_be_run(tmp_path: Path, elsewhere: Path) -> None:
    """This environment cannot check the modules of another one."""
    (tmp_path / "torchrun").write_text(f"#!{elsewhere / 'python3'}\n")
    (tmp_path / "torchrun").chmod(0o755)
    (elsewhere / "python3").write_text("#!/bin/sh\n[ $1 = -c ] || echo started\n")
    done = run("--", "./torchrun", "-m", "only.there", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "started\n"


def test_accelerate_that_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "accelerate.py").write_text("raise ImportError('numpy is too old')")
    done = run("--", "accelerate", "launch", "train.py", cwd=tmp_path, PYTHONPATH=str(broken))
    assert done.returncode == 2
    assert done.stderr == "ddoctor: cannot import accelerate: numpy is too old\n"


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("python train.py", 2, "torch is not installed here"),
        ("torchrun train.py", 2, "cannot import torchrun"),
        ("./batch python train.py", 0, "ddoctor: ./batch python -m ddoctor.probe run train.py"),
    ],
)
def test_without_torch_only_others_are_started(
    tmp_path: Path, command: str, code: int, told: str
) -> None:
    """A login node need not have it."""
    (tmp_path / "train.py").touch()
    (tmp_path / "batch").write_text("#!/bin/sh\n")
    (tmp_path / "batch").chmod(0o755)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WITHOUT_TORCH)
    done = run("--", *command.split(), cwd=tmp_path, PYTHONPATH=str(site))
    assert done.returncode == code, done.stderr
    (said,) = done.stderr.splitlines()
    assert told in said


def test_it_replaces_itself_so_that_signals_come_through(tmp_path: Path) -> None:
    """The launcher has the very process that was started: Slurm and the shell see only one."""
    launcher = tmp_path / "launcher"
    launcher.write_text(
        dedent(
            """\
            #!/bin/sh
            echo $$ "$@"
            exit 7
            """
        )
    )
    launcher.chmod(0o755)
    (tmp_path / "train.py").touch()
    with subprocess.Popen(
        [*DDOCTOR, "--json=x.json", "--", "./launcher", "--x=y z", "python", "train.py", "a b"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        stdout, stderr = process.communicate(timeout=60)
    words = "--x=y z python -m ddoctor.probe run --json=x.json train.py a b"
    assert stdout == f"{process.pid} {words}\n"
    assert process.returncode == 7
    assert stderr == (
        "ddoctor: ./launcher '--x=y z' python -m ddoctor.probe run --json=x.json train.py 'a b'\n"
    )


def test_a_script_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    """As `python <(generate-script)`: what is read to check it would be lost."""
    reading, writing = os.pipe()
    os.write(writing, b"print('from a pipe')")
    os.close(writing)
    done = subprocess.run(
        [*DDOCTOR, "--no-prove", "--", sys.executable, f"/dev/fd/{reading}"],
        cwd=tmp_path,
        pass_fds=[reading],
        capture_output=True,
        text=True,
        timeout=120,
    )
    os.close(reading)
    assert done.stdout.startswith("from a pipe\n"), done.stderr
