"""Exact versions of packages that the files next to a script ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting
from ddoctor.launch import files

NAMES = ("requirements.txt", "requirements/base.txt", "pyproject.toml", "environment.yml")
# pip writes two equals signs, conda one.
PIN = re.compile(
    r"""^[\s"'-]*(?P<name>[A-Za-z][\w.-]{0,60})(?:\[[\w,-]{1,60}\])?\s?={1,2}\s?(?P<version>\d[\w.+]{0,30})["',\s]*(?:[#;].*)?$"""
)
PACKAGES = (
    *("torch", "pytorch", "accelerate", "transformers", "numpy"),
    *("trl", "deepspeed", "lerobot"),
)
"""Those whose version decides what is wrong with a launch."""


def read(folder: Path) -> Iterator[Setting]:
    """The pins, named ``pin.PACKAGE``."""
    for name in NAMES:
        text = ""
        if files.is_there(folder / name):
            with suppress(DoctorError):
                text = files.text(folder / name, name)
        for number, line in enumerate(text.splitlines(), 1):
            match = PIN.match(line)
            if match is not None and match["name"].lower() in PACKAGES:
                package = match["name"].lower().replace("pytorch", "torch")
                yield Setting(name=f"pin.{package}", value=match["version"], file=name, line=number)
