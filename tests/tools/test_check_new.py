"""The files of the template pass the tests and the linter unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest

from tools import check_new

ROOT = Path(__file__).parents[2]
NAME = "fan-of-a-host-with-many-gpus-does-not-turn"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("ddoctor", "checks", "probes", "tests"):
        copytree(ROOT / folder, tmp_path / folder, ignore=ignore_patterns("__pycache__", "ward"))
    copy(ROOT / "pyproject.toml", tmp_path)
    # As the wheel has them.
    for flat in ("checks", "probes"):
        (tmp_path / "ddoctor" / flat).symlink_to(tmp_path / flat)
    return tmp_path


def run(folder: Path, *arguments: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_files_pass_at_once(checkout: Path) -> None:
    files = [str(path) for path in check_new.write(checkout, NAME)]
    run(checkout, "ruff", "check", *files)
    run(checkout, "ruff", "format", "--check", *files)
    run(checkout, "pytest", "-q", files[1])
    run(checkout, "pytest", "-q", "tests/test_manners.py", "-k", NAME)
    run(checkout, "ddoctor", "explain", NAME)


@pytest.mark.parametrize(
    "name", ["", "Fan-Still", "fan", "fan_still", "../fan-still", "compute-bound"]
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        check_new.write(tmp_path, name)
