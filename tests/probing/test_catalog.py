"""The catalog of the probes."""

from __future__ import annotations

import subprocess
import sys

from ddoctor.probing import catalog


def test_probes_are_listed_without_torch() -> None:
    script = (
        "import sys; from ddoctor.probing import catalog;"
        "print(*[catalog.describe(name) for name in catalog.names()], sep='\\n');"
        "assert 'torch' not in sys.modules"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    lines = output.splitlines()
    assert len(lines) == len(catalog.names()) >= 5
    assert all(line.endswith(".") for line in lines)
