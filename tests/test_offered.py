"""Checks and probes of another package: installed for real, judged alike, and never in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "pyproject.toml": """
        [build-system]
        requires = ["setuptools"]
        build-backend = "setuptools.build_meta"

        [project]
        name = "acme-fans"
        version = "1.0"

        [project.entry-points."ddoctor.evidence"]
        fans = "acme_fans.evidence"

        [project.entry-points."ddoctor.checks"]
        fan-off = "acme_fans.fan_off"
        fan-silent = "acme_fans.silent"
        fan-unknown = "acme_fans.not_there"
        fan-wrong = "acme_fans.wrong"
        compute-bound = "acme_fans.fan_off"

        [project.entry-points."ddoctor.probes"]
        fan_speed = "acme_fans.fan_speed"
        matmul = "acme_fans.fan_speed"

        [tool.setuptools]
        packages = ["acme_fans"]
        """,
    "acme_fans/__init__.py": "",
    "acme_fans/evidence.py": """
        from typing import ClassVar

        from ddoctor.evidence.section import Section


        class FanSpeed(Section, frozen=True, kw_only=True):
            probe: ClassVar[str] = "fan_speed"

            turns: int
        """,
    "acme_fans/fan_speed.py": '''
        """How fast the fan of the host turns."""

        from acme_fans.evidence import FanSpeed


        def measure(world):
            return FanSpeed(turns=0) if world.rank == 0 else None
        ''',
    "acme_fans/fan_off.py": '''
        """The fan of the host does not turn.

        The GPUs get hot.
        """

        from collections.abc import Iterator

        from acme_fans.evidence import FanSpeed
        from ddoctor.models import Confidence, Finding, Severity


        def off(speed: FanSpeed) -> Iterator[Finding]:
            if not speed.turns:
                yield Finding(
                    severity=Severity.WARNING,
                    confidence=Confidence.CERTAIN,
                    because="the fan turns 0 times a minute",
                )
        ''',
    "acme_fans/silent.py": "def nothing(speed):\n    yield from ()\n",
    "acme_fans/wrong.py": '"""Wrong."""\n\n\ndef wrong(number: int):\n    yield number\n',
}
BROKEN = {
    "compute-bound (acme-fans)": "ddoctor already offers this name",
    "fan-silent (acme-fans)": "",
    "fan-unknown (acme-fans)": "ModuleNotFoundError: No module named 'acme_fans.not_there'",
    "fan-wrong (acme-fans)": "TypeError: parameter number of acme_fans.wrong.wrong: <class 'int'>",
    "probe matmul (acme-fans)": "ddoctor already offers this name",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the package."""
    source = tmp_path_factory.mktemp("source")
    for name, text in FILES.items():
        path = source / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedented(text))
    target = tmp_path_factory.mktemp("target")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--target", target, source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def dedented(text: str) -> str:
    lines = [line.removeprefix(" " * 8) for line in text.splitlines()]
    return "\n".join(lines).lstrip("\n") + "\n"


def ddoctor(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddoctor", *arguments],
        env=os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def test_they_are_listed_with_their_package(installed: Path) -> None:
    listed = ddoctor(installed, "list")
    assert listed.returncode == 0, listed.stderr
    assert "The fan of the host does not turn (from acme-fans)" in listed.stdout
    assert "How fast the fan of the host turns. (from acme-fans)" in listed.stdout
    for name, why in BROKEN.items():
        assert f"  {name}: {why}" in listed.stdout
    assert "The GPUs get hot." in ddoctor(installed, "explain", "fan-off").stdout


def test_they_are_judged_alike_and_a_broken_one_costs_nothing_else(installed: Path) -> None:
    examined = ddoctor(installed, "doctor", "--probe", "fan_speed", "--json", "-")
    report = json.loads(examined.stdout)
    assert "fan-off" in [finding["cause"] for finding in report["findings"]]
    crashed = {row["check"]: row["error"] for row in report["crashed"]}
    assert crashed.keys() == BROKEN.keys()
    assert all(why in crashed[name] for name, why in BROKEN.items())
    assert examined.returncode == 1
