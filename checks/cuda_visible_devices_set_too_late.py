"""The script sets CUDA_VISIBLE_DEVICES after it has used CUDA, so the setting has no effect.

CUDA reads CUDA_VISIBLE_DEVICES when a process first uses it. ``torch.cuda.is_available()`` is such
a use; ``import torch`` alone is not. A later ``os.environ["CUDA_VISIBLE_DEVICES"] = …`` changes
nothing in this process. The run then uses GPUs that it should leave alone, or all ranks use GPU 0.

Symptoms: ``torch.cuda.device_count()`` still counts all GPUs, and ``nvidia-smi`` shows the process
on another GPU than the one set.

To fix it, set the variable in the shell, or on the first lines of the script.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity


def in_the_source(script: Script) -> Iterator[Finding]:
    for setting in script.settings:
        if setting.name != "os.environ[CUDA_VISIBLE_DEVICES]":
            continue
        if set(setting.within) - {"condition"} or (setting.within and _hides(setting.value)):
            continue
        one = setting.after
        if one is not None:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(setting.at)} comes after {shown(one)}, which uses CUDA: the "
                    "process keeps the GPUs that it saw there"
                ),
                fixes=(
                    Fix.python(
                        summary="set it before anything uses CUDA, or in the shell",
                        paste=f"import os\n\n{setting.at.text}\n\nimport torch",
                    ),
                ),
            )
            return


def _hides(value: str) -> bool:
    """Whether it hides all GPUs, mostly where there are none."""
    return value.strip("'\"") in ("", "-1")
