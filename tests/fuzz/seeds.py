"""The sound inputs that are changed: bundles of each command, and of a few sick runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from ddoctor.evidence.cluster_probes import ArmTurn, ControlArm, ControlArms
from ddoctor.evidence.section import Evidence
from tests.healthy import COMMANDS, healthy
from tests.report import sample

SICK = ("sick", "two-hosts", "incomplete", "late-rank", "slow-loader", "failed-rank")
"""Of the reports to show: findings have other words, charts and tables than sound runs have."""
ARMS = ControlArms(
    arms=(
        ControlArm(
            environment=("NCCL_ALGO=Ring",),
            hosts=("node-1",),
            bytes=2**28,
            without=(ArmTurn(rate=10.0), ArmTurn(failure="a rank is missing")),
            with_it=(ArmTurn(rate=12.0), ArmTurn(rate=12.5)),
        ),
    )
)


@cache
def bundles() -> dict[str, bytes]:
    """Each bundle by its name, as JSON."""
    return {name: _document(evidence) for name, evidence in _evidence()}


def _evidence() -> Iterator[tuple[str, Evidence]]:
    for command in COMMANDS:
        yield command, healthy(command)
    for name in SICK:
        yield name, sample.SAMPLES[name]()[1]
    yield "arms", healthy("probe").with_sections(ARMS)


def _document(evidence: Evidence) -> bytes:
    document: dict[str, Any] = {
        "schema": 1,
        "ddoctor": "0",
        "created": "2026-11-20T03:04:05+00:00",
        "sections": list(evidence),
    }
    return msgspec.json.encode(document)
