"""A script finds itself under ddoctor as without, but for what docs/security.md names."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import TORCHRUN, MakeTraining

STATE = Path(__file__).parent / "state.py"
PYTHON = (sys.executable,)
UNDER = (str(Path(sys.executable).with_name("ddoctor")), "run", "--no-prove", "--")


def script(folder: Path) -> tuple[str, ...]:
    shutil.copy(STATE, folder)
    return (STATE.name,)


def far_away(folder: Path) -> tuple[str, ...]:
    (folder / "deep").mkdir()
    return (str(shutil.copy(STATE, folder / "deep")),)


def link(folder: Path) -> tuple[str, ...]:
    (folder / "link.py").symlink_to(far_away(folder)[0])
    return ("./link.py",)


def module(folder: Path) -> tuple[str, ...]:
    (folder / "mine").mkdir()
    shutil.copy(STATE, folder / "mine" / "state.py")
    return ("-m", "mine.state")


def packed(folder: Path) -> tuple[str, ...]:
    (folder / "app").mkdir()
    shutil.copy(STATE, folder / "app" / "__main__.py")
    return ("app",)


def zipped(folder: Path) -> tuple[str, ...]:
    with zipfile.ZipFile(folder / "app.zip", "w") as file:
        file.write(STATE, "__main__.py")
    return ("app.zip",)


WARD = pytest.mark.ward
Place = Callable[[Path], tuple[str, ...]]
WAYS = [
    pytest.param(PYTHON, script, id="script"),
    pytest.param(
        (*PYTHON, "-u", "-W", "error::UserWarning", "-X", "utf8"),
        far_away,
        id="options",
        marks=WARD,
    ),
    pytest.param((*PYTHON, "-I"), script, id="isolated", marks=WARD),
    pytest.param((*PYTHON, "-P"), module, id="safe path, no module", marks=WARD),
    pytest.param(PYTHON, link, id="link", marks=WARD),
    pytest.param(PYTHON, module, id="module", marks=WARD),
    pytest.param(PYTHON, packed, id="folder", marks=WARD),
    pytest.param(PYTHON, zipped, id="zip file", marks=WARD),
    pytest.param(TORCHRUN, script, id="torchrun", marks=WARD),
    pytest.param((*TORCHRUN, "-m"), module, id="torchrun -m", marks=WARD),
]


@pytest.mark.parametrize(("launcher", "place"), WAYS)
def test_the_script_is_as_without(
    training: MakeTraining,
    tmp_path: Path,
    launcher: tuple[str, ...],
    place: Place,
) -> None:
    run = training("")
    words = place(tmp_path)
    if launcher[-1] == words[0] == "-m":
        words = words[1:]
    told = []
    for name, before in (("bare", ()), ("under", UNDER)):
        with run.started(*before, *launcher, *words, name, "23") as process:
            told.append(run.outcome(process))
    bare, under = told
    assert under.exit_code == bare.exit_code != 0, under.stderr
    if not bare.stdout:
        assert bare.stderr in under.stderr
        return
    lines = [line for line in bare.stdout.splitlines() if "torch.float32" in line]
    assert len(lines) >= 26, bare.stderr
    assert sorted(line for line in under.stdout.splitlines() if line in lines) == sorted(lines)
    # torchrun, too, starts each rank in a session of its own.
    launched = launcher[: len(TORCHRUN)] == TORCHRUN
    for rank in ("0", "1") if launched else ("",):
        one, other = (
            json.loads((tmp_path / f"{name}{rank}").read_text()) for name in ("bare", "under")
        )
        modules = set(other.pop("modules"))
        assert modules >= set(one.pop("modules"))
        assert not modules & {"torch", "numpy"}
        assert without_ours(other, launched=launched) == one


def without_ours(state: Mapping[str, Any], *, launched: bool) -> dict[str, Any]:
    """What was found, but for what docs/security.md says that a script can notice."""
    status = dict(state["status"])
    caught = int(status["SigCgt"], 16)
    for one in (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL):
        caught &= ~(1 << one - 1)
    ours = {
        "importers": [one for one in state["importers"] if one != "Watcher"],
        "faulthandler": False,
        "status": status | {"SigCgt": f"{caught:016x}"},
        "dies with its parent": 0,
        "environment": without(state["environment"], "DDOCTOR_FOLDER", "DDOCTOR_ISOLATE"),
        "descriptors": {
            number: one for number, one in state["descriptors"].items() if "crash" not in one[1]
        },
        "leads its session": launched,
    }
    return {**state, **ours}


def without(found: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in found.items() if name not in names}


def test_what_the_shell_opened_is_there(training: MakeTraining, tmp_path: Path) -> None:
    """`train.py <(make-config)` names a descriptor that the script inherits."""
    run = training("import sys; print('read', open(sys.argv[1]).read())")
    command = shlex.join([*UNDER, *PYTHON, "train.py"])
    with run.started("bash", "-c", f"{command} <(echo lr: 0.1)") as process:
        assert "read lr: 0.1\n" in run.outcome(process).stdout


def test_the_users_own_modules_are_not_ddoctors(training: MakeTraining, tmp_path: Path) -> None:
    names = ("pathlib", "queue", "resource", "signal", "statistics", "token")
    for name in names:
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    run = training(f"import {', '.join(names)}\nprint('mine', statistics.MINE, signal.MINE)")
    with run.started(*UNDER, *PYTHON, "train.py") as process:
        ran = run.outcome(process)
    assert "mine True True\n" in ran.stdout, ran.stderr
    assert "Traceback" not in ran.stderr
