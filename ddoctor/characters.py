"""Text of others on a terminal or a page: shown, and never obeyed."""

from __future__ import annotations

import re

STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, those that change the writing direction, and what UTF-8 cannot encode."""


STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""What makes text bold or coloured on a terminal, as torch writes it into some messages."""


def tamed(text: str) -> str:
    """Replace control characters, so that no machine's text controls the terminal or page."""
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", STYLE.sub("", text))
