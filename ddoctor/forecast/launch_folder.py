"""The folder that launch files are written into."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Plan
from ddoctor.forecast.launch_files import NAMES, texts


@dataclass(frozen=True, kw_only=True)
class LaunchFolder:
    """Whether it can be written is settled before the work.

    Raises:
        DoctorError: it cannot, or it has files, and nobody said that some may be replaced.
    """

    path: Path
    replace: bool

    def __post_init__(self) -> None:
        existing = next(one for one in (self.path, *self.path.parents) if one.exists())
        if not existing.is_dir():
            raise DoctorError(f"cannot write into {self.path}: {existing} is no folder")
        if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
            raise DoctorError(f"cannot write into {self.path}: permission denied")
        if existing == self.path and not self.replace and any(self.path.iterdir()):
            raise DoctorError(
                f"{self.path} has files: name another folder, or let --force replace "
                f"{', '.join(NAMES)} there"
            )

    def write(self, plan: Plan) -> None:
        """The files of its recommendation.

        Raises:
            DoctorError: it has none, or a file cannot be written.
        """
        try:
            found = texts(plan)
            self.path.mkdir(parents=True, exist_ok=True)
            for name, text in found.items():
                (self.path / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise DoctorError(f"cannot write {error.filename}: {error.strerror}") from error
