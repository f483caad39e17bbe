"""The images of each sample, as ``ddoctor plan --images`` names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ddoctor.errors import DoctorError


@dataclass(frozen=True)
class Images:
    """Images of each sample, written as ``4x448x448``: number, height and width in pixels."""

    text: str

    FORM: ClassVar[re.Pattern[str]] = re.compile(r"[1-9]\d{0,3}x[1-9]\d{0,4}x[1-9]\d{0,4}")

    def __post_init__(self) -> None:
        """Check the form."""
        if not self.FORM.fullmatch(self.text):
            raise DoctorError(
                f"--images {self.text}: give number, height and width, such as 4x448x448"
            )

    @property
    def number(self) -> int:
        """Images of a sample."""
        return self._numbers[0]

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self._numbers[1], self._numbers[2]

    @property
    def _numbers(self) -> list[int]:
        return [int(one) for one in self.text.split("x")]
