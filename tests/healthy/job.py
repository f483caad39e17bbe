"""A sound launch from a clean checkout, and clocks that NTP keeps together."""

from __future__ import annotations

from ddoctor.evidence.cluster_probes import ClockOffset, ClockOffsets
from ddoctor.evidence.software import Job
from tests.healthy.host import HOST

SECTIONS = (
    Job(
        host=HOST,
        arguments=("--config", "train.yaml", "--lr", "3e-4"),
        commit="1f0d3e5c7b9a2846f0e1d2c3b4a5968778695a4b",
    ),
    ClockOffsets(
        offsets=(
            ClockOffset(host=HOST, offset=0.0, uncertainty=0.0),
            ClockOffset(host="node-2", offset=0.000_4, uncertainty=0.000_3),
        ),
    ),
)
