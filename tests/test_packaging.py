"""The wheel holds everything, under one top level, and works next to a user's own packages."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parent.parent
INTRUDER = "raise SystemExit('an intruder')\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, as an installer does that has no wheel."""
    folder = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_packages_listed_are_those_on_disk() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        ".".join(("ddoctor", *path.parent.relative_to(ROOT / "ddoctor").parts))
        for path in (ROOT / "ddoctor").rglob("*.py")
    }
    assert set(listed["packages"]) == found | {"ddoctor.checks", "ddoctor.probes"}
    for flat in ("checks", "probes"):
        assert {path.parent.name for path in (ROOT / flat).rglob("*.py")} == {flat}


def test_the_wheel_holds_every_file_and_one_top_level(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"ddoctor"}
    for source, target in (("ddoctor", "ddoctor"), ("checks", "ddoctor/checks")):
        for path in (ROOT / source).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                assert f"{target}/{path.relative_to(ROOT / source)}" in names
    assert {f"ddoctor/probes/{path.name}" for path in (ROOT / "probes").glob("*.py")} <= names


def test_it_works_from_a_hostile_folder(installed: Path, tmp_path: Path) -> None:
    """The user's own folder has packages and modules of the same names as ours and Python's."""
    for name in ("checks", "probes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(INTRUDER)
    for name in ("queue", "utils", "models", "allreduce"):
        (tmp_path / f"{name}.py").write_text(INTRUDER)
    for arguments in (["list"], ["explain", "shm-too-small"], ["doctor", "--probe", "matmul"]):
        run = subprocess.run(
            [sys.executable, "-P", "-m", "ddoctor", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
        )
        assert run.returncode in (0, 1), run.stdout + run.stderr
        assert "an intruder" not in run.stdout + run.stderr
        assert "Traceback" not in run.stderr, run.stderr
