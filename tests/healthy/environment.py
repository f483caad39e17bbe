"""The environment of a sound launch: what the launcher sets, and nothing else."""

from __future__ import annotations

from ddoctor.evidence.software import Environment, Variable
from tests.healthy.host import HOST

SECTIONS = (
    Environment(
        host=HOST,
        variables=(
            Variable(name="MASTER_ADDR", value="node-1"),
            Variable(name="MASTER_PORT", value="29500"),
            Variable(name="NCCL_DEBUG", value="WARN"),
            Variable(name="OMP_NUM_THREADS", value="12"),
        ),
    ),
)
