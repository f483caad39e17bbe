"""The GPU model that a launch asks its scheduler for, and the memory of one."""

from __future__ import annotations

import re

from ddoctor import knowledge
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.known_hardware import GpuModels

ASKED = ("gpu-model", "gres", "gpus-per-host", "gpus", "gpus-per-task", "srun.constraint")
"""Settings whose value may name a GPU: ``gpu:a100:8``, ``h100:4``, ``NVIDIA-H100-80GB-HBM3``."""
SCHEDULERS = frozenset(("srun", "sbatch", "ray"))
"""What starts ranks on other machines than this one."""
SIZE = re.compile(r"(\d{2,3})(?:gb?)?")
FAMILY = re.compile(r"[a-z]{1,2}\d{1,4}[a-z]?|\d{4}")
"""The part of a model's name that is no make and no size: ``a100`` of ``A100 SXM 80GB``."""


def of_launch(plan: LaunchPlan, gpus: Gpus | None) -> tuple[float, str]:
    """The GiB of a GPU of the launch, and what tells its model; 0: unknown.

    Of the variants that the words do not tell apart, the largest counts.
    """
    for one in filter(None, map(plan.launch.get, ASKED)):
        if found := _largest(one.value):
            return found, f"{one.value} in {one.at}"
    elsewhere = plan.launch.get("elsewhere") is not None or SCHEDULERS & {*plan.launch.around}
    if gpus is None or not gpus.gpus or elsewhere:
        return 0.0, ""
    return max(one.memory_total for one in gpus.gpus) / 2**30, "of this machine"


def _largest(text: str) -> float:
    """The memory of the largest known GPU that a text names; 0: it names none."""
    words = _words(text)
    sizes = {int(found[1]) for word in words if (found := SIZE.fullmatch(word))}
    fitting = [
        model.memory
        for model in knowledge.load(GpuModels).models
        if {word for word in _words(model.name) if FAMILY.fullmatch(word)} & words
    ]
    exact = (size for size in fitting if size in sizes)
    return max(exact, default=max(fitting, default=0.0))


def _words(text: str) -> set[str]:
    """Its words, with the number of a GeForce as one: ``rtx4090`` and ``RTX 4090``."""
    return {*re.split(r"[^a-z0-9]+|(?<=rtx)(?=\d)", text.lower())}
