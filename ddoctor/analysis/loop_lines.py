"""Lines of a training loop with work that few steps or none need, by their text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddoctor.evidence.frames import Frame

COLLECTS = "collects garbage"
OVERHEAD: Mapping[str, re.Pattern[str]] = {
    COLLECTS: re.compile(r"\bgc\.collect\("),
    "empties the allocator's cache": re.compile(r"\bempty_cache\("),
    "reads values back": re.compile(r"\.(item|cpu|tolist|numpy)\("),
    "logs": re.compile(
        r"\bprint\(|\blog(ger|ging)?[._(]|\.log\w*\(|\badd_(scalar|histogram|image|figure)s?\("
        r"|\bwandb\b|\bmlflow\b|set_postfix|\.(write|flush)\(|json\.dump"
    ),
    "waits": re.compile(r"\bsleep\(|\.synchronize\("),
    "copies": re.compile(r"\bdeepcopy\("),
}
"""Work that few steps or none need, and the text of a line that does it."""

OF_NO_BATCH = (COLLECTS, "empties the allocator's cache", "logs")
"""What is no work on a batch, even in a line that reads it."""


def does(line: Frame) -> str:
    """What such a line does; empty: it is none."""
    return next((told for told, sign in OVERHEAD.items() if sign.search(line.text)), "")
