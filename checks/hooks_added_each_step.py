"""The script adds hooks to a module again and again, so that each step runs more of them.

``register_forward_hook`` adds a hook that stays until its handle removes it. Called in each step,
as by a function that reads the features of a layer, the module runs one more hook in each step.
Each keeps alive what its function refers to.

Symptoms: steps become slower and slower, and memory grows, though nothing seems to be stored.

To fix it, register the hook once before the loop, or remove it after each use.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Growth, MemoryOverTime
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "step-loop-overhead",
    "autograd-graph-retained",
    "host-memory-leak",
    "memory-headroom-low",
    "many-small-operations",
    "step-time-grows",
)

# One in every second step; a training that unfreezes layers, or logs now and then, adds a few.
OF_THE_STEPS = 0.5
FEWEST_STEPS = 10


def found(memory: MemoryOverTime) -> Iterator[Finding]:
    ranks = [one for one in memory.ranks if _added(one) >= OF_THE_STEPS]
    if not ranks:
        return
    worst = max(ranks, key=_added)
    hooks = worst.hooks
    if hooks is None:
        return
    at = f"{endings.place(hooks.line)}{endings.quoted(hooks.line)}"
    who = endings.ranks((one.rank for one in ranks), every=memory.ranks)
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"modules of {who} have {hooks.number} hooks more than {_steps(worst)} steps before, "
            f"{_added(worst):.2g} in each step, by {at}: each pass runs all of them"
        ),
        evidence=(
            Observation(
                name="hooks added to modules",
                value=hooks.number,
                expected=0,
                source=f"rank {worst.rank}, {_steps(worst)} steps",
            ),
        ),
        where=Where(ranks=tuple(one.rank for one in ranks)),
        fixes=(_ONCE,),
    )


def in_the_source(script: Script, memory: MemoryOverTime | None) -> Iterator[Finding]:
    # A run shows whether hooks are added at all, and `found` what comes in most steps.
    seen = [_added(one) for one in memory.ranks if one.hooks is not None] if memory else [0.0]
    if not seen or max(seen) >= OF_THE_STEPS:
        return
    for line in script.repeated_hooks[:1]:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{shown(line)} adds hooks again and again in the training loop, and no line "
            "removes one: each pass runs all of them",
            fixes=(_ONCE,),
        )


_ONCE = Fix.python(
    summary="register it once, before the loop, or remove it after use",
    paste="handle = layer.register_forward_hook(hook)\n"
    "try:\n"
    "    output = model(batch)\n"
    "finally:\n"
    "    handle.remove()",
)


def _added(one: Growth) -> float:
    """Hooks in each step; 0: too few steps to say."""
    if one.hooks is None or _steps(one) < FEWEST_STEPS:
        return 0.0
    return one.hooks.number / _steps(one)


def _steps(one: Growth) -> int:
    return one.steps[-1] - one.steps[0] if one.steps else 0
