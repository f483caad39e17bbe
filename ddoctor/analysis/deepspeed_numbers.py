"""The batch and the accumulation that DeepSpeed's file and a script both have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec.structs import replace as with_fields

from ddoctor.analysis.deepspeed_batch import BATCH, MICRO, STEPS
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.evidence.launch import Setting

WORD = re.compile(r"[a-z]+")
ACCUMULATES = {"accum", "accumulate", "accumulation"}
WHOLE = {"global", "total", "effective"}

Words = frozenset[str]
OF_SCRIPTS: dict[str, Callable[[Words], bool]] = {
    STEPS: lambda words: bool(ACCUMULATES & words) and not {"eval", "batch"} & words,
    MICRO: lambda words: (
        "batch" in words
        and bool({"micro"} & words or ({"per"} & words and {"gpu", "device", "rank"} & words))
        and not {"eval", "test", "val"} & words
    ),
    BATCH: lambda words: "batch" in words and bool(WHOLE & words),
}
"""Words of a script's argument with the same meaning as a key of DeepSpeed."""


def deepspeed_pairs(plan: LaunchPlan) -> Iterator[tuple[Setting, Setting]]:
    """The numbers of DeepSpeed's file, each with the different one of the script's arguments."""
    launch = plan.launch
    for key, is_same in OF_SCRIPTS.items():
        other = _whole(plan) if key == BATCH else launch.get(key)
        own = [
            one
            for one in {one.name: one for one in reversed(launch.settings)}.values()
            if one.name.startswith("arg.")
            and one.number
            and is_same(frozenset(WORD.findall(one.name[4:].lower())))
        ]
        # Of several, none is known to be what the script counts with.
        if other is None or not other.number or len(own) != 1 or own[0].number == other.number:
            continue
        # A default of 1 may stand for "not used".
        if own[0].number != 1 or not own[0].file:
            yield other, own[0]


def _whole(plan: LaunchPlan) -> Setting | None:
    """The global batch of DeepSpeed: as written, else the product that it makes itself."""
    launch = plan.launch
    if (written := launch.get(BATCH)) is not None and written.number:
        return written
    micro, steps = launch.get(MICRO), launch.get(STEPS)
    if micro is None or not micro.number or plan.ranks is None:
        return None
    if steps is not None and not steps.number:
        return None
    each = micro.number * (steps.number or 1 if steps is not None else 1)
    return with_fields(micro, name=BATCH, value=str(each * plan.ranks))
