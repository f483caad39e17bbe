"""The output folder of launch files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Plan
from ddoctor.forecast.launch_files import NAMES, texts


@dataclass(frozen=True, kw_only=True)
class LaunchFolder:
    """The folder, checked for write access before the work starts.

    Raises:
        DoctorError: it cannot be written, or it has files and --force is missing.
    """

    path: Path
    replace: bool

    def __post_init__(self) -> None:
        existing = next(one for one in (self.path, *self.path.parents) if one.exists())
        if not existing.is_dir():
            raise DoctorError(f"cannot write into {self.path}: {existing} is not a folder")
        if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
            raise DoctorError(f"cannot write into {self.path}: permission denied")
        if existing == self.path and not self.replace and any(self.path.iterdir()):
            raise DoctorError(
                f"{self.path} has files: name another folder, or replace {', '.join(NAMES)} in it "
                "with --force"
            )

    def write(self, plan: Plan) -> None:
        """Write the files for the plan's recommendation.

        Raises:
            DoctorError: it recommends nothing, or a file cannot be written.
        """
        try:
            found = texts(plan)
            self.path.mkdir(parents=True, exist_ok=True)
            for name, text in found.items():
                (self.path / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise DoctorError(f"cannot write {error.filename}: {error.strerror}") from error
