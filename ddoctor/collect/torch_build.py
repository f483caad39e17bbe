"""Run as a separate process, prints torch's properties as JSON.

Importing torch takes seconds, and a broken installation may end the process. Neither may happen to
ddoctor itself.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ddoctor.proc.files import search
from ddoctor.proc.parent import end_with_parent

LOADED_NCCL = r"(/.*/libnccl\.so[^/\n]*)$"
"""In /proc/PID/maps, where lines without a path may follow."""


def describe() -> dict[str, Any]:
    """The fields of `ddoctor.evidence.software.Torch`; a torch that lacks one leaves it out."""
    torch: Any = import_module("torch")
    described: dict[str, Any] = {"version": str(torch.__version__)}

    def add(name: str, value: Callable[[], Any]) -> None:
        # Each may be missing in some build, or raise where a library of CUDA is absent.
        with contextlib.suppress(Exception):
            described[name] = value()

    add("path", lambda: str(Path(torch.__file__).parent))
    add("cuda", lambda: torch.version.cuda)
    add("hip", lambda: torch.version.hip)
    add("architectures", lambda: list(torch.cuda.get_arch_list()))
    if described.get("cuda") or described.get("hip"):
        add("nccl", lambda: ".".join(map(str, torch.cuda.nccl.version()[:3])))
        add("cudnn", lambda: str(torch.backends.cudnn.version()))
    described["nccl_library"] = search(LOADED_NCCL, Path("/proc/self/maps")) or None
    return described


if __name__ == "__main__":
    end_with_parent()
    print(json.dumps(describe()))
