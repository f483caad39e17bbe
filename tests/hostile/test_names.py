"""Folders, scripts and hosts may have any name."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.hostile.surroundings import ALONE, RUN, after, run, script

NAMES = ("two words", "new\nline", os.fsdecode(b"b\xffyte"), "quo'te\"$HOME`x`", "ünï-漢", "-x")
IDS = ("space", "newline", "byte", "quotes", "unicode", "dash")
FAILS = ALONE.replace("sys.exit(int", 'raise ValueError("by intention")\n    sys.exit(int')


@pytest.mark.ward
@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_a_script_and_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    path = script(folder, FAILS, f"{name}.py")
    files = ("--json", "r.json", "--bundle", "b.json", "--html", "h.html", "--markdown", "m.md")
    for shown in str(path), f"./{name}.py":
        ran = run(*RUN, *files, sys.executable, shown, folder=folder)
        assert (ran.code, ran.ends) == (1, 1), ran.stderr
        assert "by intention" in ran.stderr
        assert not any("not recorded" in line for line in ran.said)
        report = json.loads((folder / "r.json").read_text())
        assert report["findings"][0]["cause"] == "script-error"
    diagnosed = run(sys.executable, "-m", "ddoctor", "diagnose", str(folder / "b.json"))
    assert diagnosed.code == 1


@pytest.mark.ward
@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_doctor_in_a_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    words = ("doctor", "--probe", "storage_read", "--json", "r.json", "--bundle", "b.json")
    (folder / f"{name}.bin").write_bytes(bytes(1 << 20))
    ran = run(sys.executable, "-m", "ddoctor", *words, folder=folder)
    assert ran.code in (0, 1), ran.stderr
    assert not json.loads((folder / "r.json").read_text())["crashed"]


@pytest.mark.parametrize(
    "name",
    [
        "a/../b",
        pytest.param("two words (x)", marks=pytest.mark.ward),
        pytest.param("h" * 64, marks=pytest.mark.ward),
        pytest.param("h\\377x", marks=pytest.mark.ward),
        pytest.param("-rf", marks=pytest.mark.ward),
        pytest.param("ünï", marks=pytest.mark.ward),
    ],
)
def test_a_host(tmp_path: Path, name: str) -> None:
    """A bundle in a folder has its name."""
    within = after(f"printf -- '{name}' > /proc/sys/kernel/hostname", "--uts")
    words = ("doctor", "--no-probes", "--bundle", str(tmp_path), "--json", "-")
    ran = run(sys.executable, "-m", "ddoctor", *words, within=within)
    assert ran.code in (0, 1), ran.stderr
    (path,) = tmp_path.glob("*.json")
    diagnosed = run(sys.executable, "-m", "ddoctor", "diagnose", str(path), "--json", "-")
    hosts = json.loads(diagnosed.stdout)["world"]["hosts"]
    assert hosts == json.loads(ran.stdout)["world"]["hosts"]


@pytest.mark.ward
@pytest.mark.parametrize("name", ["two words", "h" * 64, "h\\377x"])
def test_a_run_on_a_host(tmp_path: Path, name: str) -> None:
    within = after(f"printf -- '{name}' > /proc/sys/kernel/hostname", "--uts")
    words = (*RUN, "--bundle", str(tmp_path), sys.executable, str(script(tmp_path)))
    ran = run(*words, within=within, environment={"CODE": "3"})
    assert (ran.code, ran.ends, len(ran.said)) == (3, 1, 0), ran.stderr
    (path,) = tmp_path.glob("*.json")
    assert run(sys.executable, "-m", "ddoctor", "diagnose", str(path)).code in (0, 1)
