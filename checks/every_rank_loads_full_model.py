"""Each rank of a host makes the whole model in host memory, before it is sharded.

``from_pretrained`` in a script that eight ranks run makes eight models. FSDP then keeps an eighth
of each; until it does, the host holds all of them, and the kernel may kill a rank for it.

Seen from outside: the host's memory fills while the model is loaded; a rank ends with exit code -9
before the first step.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.plan import GPUS_PER_HOST, Plan
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("host-ram-oom",)

GIB = 2**30
# The rest is for the system, the page cache that the weights come through, and the loaders.
OF_THE_HOST = 0.8


def in_a_plan(plan: Plan) -> Iterator[Finding]:
    row = plan.rows[plan.chosen] if plan.chosen is not None else None
    if row is None or plan.host_memory is None or not row.strategy.startswith("fsdp"):
        return
    ranks = min(row.gpus, GPUS_PER_HOST)
    whole = ranks * plan.checkpoint
    if ranks < 2 or whole <= OF_THE_HOST * plan.host_memory:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{ranks} ranks of a host that each load the whole model need {whole / GIB:.0f} GiB "
            f"there, and it has {plan.host_memory / GIB:.0f}; whether the script loads it so, a "
            "look at it settles"
        ),
        evidence=(
            Observation(name="the model", value=round(plan.checkpoint / GIB, 1), unit="GiB"),
            Observation(name="ranks of a host", value=ranks),
        ),
        cost=Cost(value=round((whole - OF_THE_HOST * plan.host_memory) / GIB, 1), unit="GiB"),
        fixes=(
            Fix(
                summary="let rank 0 alone load it, and send each its part",
                paste=(
                    "fsdp_config:\n"
                    "  fsdp_version: 2\n"
                    "  fsdp_cpu_ram_efficient_loading: true   # of accelerate\n"
                ),
                language="yaml",
                caution="from_pretrained only after Accelerator() or TrainingArguments()",
            ),
            Fix(
                summary="or make it without weights, and load a sharded checkpoint",
                paste=(
                    "with torch.device('meta'):\n"
                    "    model = Model(config)\n"
                    "for block in model.layers:\n"
                    "    fully_shard(block)\n"
                    "fully_shard(model)\n"
                    "model.to_empty(device='cuda')\n"
                    "dcp.load({'model': model.state_dict()}, checkpoint_id='checkpoint')"
                ),
                language="python",
            ),
        ),
    )
