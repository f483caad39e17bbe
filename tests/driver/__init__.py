"""The played driver: `nvml.c` built as libnvidia-ml.so.1, and scenario files that it answers from.

Whoever starts a process with `environment` has the real pynvml find 8 GPUs, or what a scenario has
in their place, and a torch that was built for CUDA 12.8.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SCENARIOS = HERE / "scenarios"
KERNEL_LOGS = HERE / "kernel"

LIBRARY_VERSION = "570.86.15"


@dataclass(frozen=True)
class PlayedDriver:
    """The library, built once."""

    folder: Path

    @classmethod
    def build(cls, folder: Path) -> PlayedDriver:
        """Build the library under its versioned name and the one that programs load."""
        library = folder / f"libnvidia-ml.so.{LIBRARY_VERSION}"
        command = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
        subprocess.run([*command, "-o", str(library), str(HERE / "nvml.c")], check=True)
        (folder / "libnvidia-ml.so.1").symlink_to(library.name)
        return cls(folder)

    def environment(self, scenario: Path) -> Mapping[str, str]:
        """Variables of a process that shall see this scenario."""
        return {
            "LD_LIBRARY_PATH": str(self.folder),
            "PLAYED_NVML_SCENARIO": str(scenario),
            "PYTHONPATH": str(HERE / "site"),
        }


def scenario(name: str, folder: Path, *lines: str) -> Path:
    """A scenario file, or one that includes it and adds lines: pids are known only when it runs."""
    file = SCENARIOS / f"{name}.txt"
    if not lines:
        return file
    extended = folder / f"{name}_extended.txt"
    extended.write_text("\n".join((f"include {file}", *lines, "")))
    return extended
