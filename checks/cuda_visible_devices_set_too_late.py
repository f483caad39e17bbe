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
from ddoctor.evidence.script import Script, SourceCall, SourceSetting
from ddoctor.models import Confidence, Finding, Fix, Severity


def in_the_source(script: Script) -> Iterator[Finding]:
    for setting in script.settings:
        if setting.name != "os.environ[CUDA_VISIBLE_DEVICES]" or setting.within:
            continue
        earlier = [
            one
            for one in script.calls
            if _is_before(one, setting) and not one.within and _uses_cuda(one)
        ]
        for one in earlier[:1]:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(setting.at)} comes after {shown(one.at)}, which uses CUDA: the "
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


def _is_before(one: SourceCall, setting: SourceSetting) -> bool:
    if (one.at.file, one.at.function) == (setting.at.file, setting.at.function):
        return one.at.line < setting.at.line
    # The top level of a module runs as it is imported, mostly before any function.
    return bool(setting.at.function) and not one.at.function


def _uses_cuda(one: SourceCall) -> bool:
    return one.name.startswith("torch.cuda.") or one.name in (".cuda", ".to")
