"""Create a check and its test: ``make check-new NAME=some-cause``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ddoctor import check_catalog

CHECK = '''"""Write here in one full sentence what is wrong.

Describe what happens and why it hurts: which rank waits for what, or which memory fills. Then
describe how it looks from outside: the lines of the log, the message of the exception, the numbers
that a user sees. End with the fix. `ddoctor explain` shows this page under the name
{name}.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.host import Memory
from ddoctor.models import Finding


def found(memory: Memory) -> Iterator[Finding]:
    # Request the sections that show the fault (docs/evidence.md lists them), and yield a Finding
    # where they show it. checks/shm_too_small.py is a good example.
    yield from ()
'''

TEST = """from __future__ import annotations

from ddoctor.evidence.host import Memory
from tests.conftest import Findings

CAUSE = "{name}"
SOUND = Memory(host="a", total=2**36, available=2**35)


def test_is_quiet_on_a_sound_host(findings: Findings) -> None:
    assert findings(CAUSE, SOUND) == ()
"""


def write(root: Path, name: str) -> tuple[Path, Path]:
    """Write both files below the root of a checkout, and return them.

    Raises:
        ValueError: the name is malformed, or a check already has it.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", name):
        raise ValueError(f"'{name}' is no valid name of a cause: use lower-case words with hyphens")
    if name in check_catalog.names():
        raise ValueError(f"a check with the name {name} already exists")
    module = name.replace("-", "_")
    files = {
        root / "checks" / f"{module}.py": CHECK,
        root / "tests" / "checks" / f"test_{module}.py": TEST,
    }
    for path, text in files.items():
        with path.open("x", encoding="utf-8") as new:
            new.write(text.format(name=name))
    check, test = files
    return check, test


if __name__ == "__main__":
    try:
        written = write(Path(__file__).parent.parent, sys.argv[1] if len(sys.argv) > 1 else "")
    except (ValueError, FileExistsError) as error:
        sys.exit(f"check-new: {error}")
    sys.stdout.write("".join(f"{path}\n" for path in written))
