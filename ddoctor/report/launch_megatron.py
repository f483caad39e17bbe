"""What accelerate's file says of Megatron-LM, in words."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ddoctor.analysis.launch_plan import MEGATRON, MICRO_BATCHES, LaunchPlan

# accelerate/utils/dataclasses.py, MegatronLMPlugin.
OPTIONS = {
    "sequence_parallelism": "sequence parallelism",
    "use_distributed_optimizer": "distributed optimizer",
    "recompute_activations": "activations recomputed",
}


def words(plan: LaunchPlan) -> Iterator[str]:
    """The degree of data parallelism, micro-batches of a step, and options that are on."""
    if plan.strategy != "Megatron-LM":
        return
    shared = prod(one.number or 1 for one in plan.degrees.values())
    if plan.ranks and plan.ranks > shared and plan.ranks % shared == 0:
        yield f"DP {plan.ranks // shared}"
    micro = plan.get(*MICRO_BATCHES)
    if micro is not None and micro.number:
        yield f"{micro.number} micro-batch{'es' * (micro.number > 1)} a step"
    for key, name in OPTIONS.items():
        if plan.launch.on(f"{MEGATRON}{key}") or plan.launch.on(f"accelerate.megatron_lm_{key}"):
            yield name
