"""Plans of a model of 4.4 billion parameters."""

from __future__ import annotations

from ddoctor.evidence.plan import Plan
from ddoctor.forecast.closed_form import Model
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.planning import plan

GB = 10**9


def planned(
    gigabytes: int,
    gpus: tuple[int, ...] = (1, 2),
    *,
    trainable: float = 4.4e9,
    activations: int = 10,
    host: int | None = None,
) -> Plan:
    """On GPUs, and hosts, of so many gigabytes; activations in gigabytes, too."""
    model = Model(
        parameters=4.4e9,
        trainable=trainable,
        precision="bf16",
        optimizer="adamw-fp32",
        activations=activations * GB,
    )
    work = PlanRequest(host_memory=host and host * GB)
    return plan(model, PlannedGpu(name="T9", memory=gigabytes * GB), gpus, work)
