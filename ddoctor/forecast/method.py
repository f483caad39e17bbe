"""The method of a training: supervised, or by preferences and rewards."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import METHODS


@dataclass(frozen=True)
class Method:
    """A method of training: ``sft``, ``dpo``, ``grpo`` or ``grpo:beta=0``."""

    text: str = "sft"

    FORM: ClassVar[re.Pattern[str]] = re.compile(METHODS)

    def __post_init__(self) -> None:
        """Check the name."""
        if not self.FORM.fullmatch(self.text):
            raise DoctorError(f"--method {self.text}: use sft, dpo, grpo or grpo:beta=0")

    @property
    def plain(self) -> bool:
        """Whether each sample is one row with a label for each token."""
        return self.text == "sft"

    @property
    def rows(self) -> int:
        """Rows of a sample: DPO concatenates the chosen and the rejected answer."""
        return 2 if self.text == "dpo" else 1

    @property
    def compares(self) -> bool:
        """Whether a reference model runs as well; TRL loads none for GRPO with beta=0."""
        return self.text in ("dpo", "grpo")

    @property
    def generates(self) -> bool:
        """Whether the model writes its own samples."""
        return self.text.startswith("grpo")


SFT = Method()
