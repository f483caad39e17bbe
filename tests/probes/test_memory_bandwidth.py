from __future__ import annotations

from ddoctor.evidence.probes import MemoryBandwidth
from ddoctor.evidence.section import Evidence


def test_every_rank_moves_memory(evidence: Evidence) -> None:
    (section,) = evidence.all(MemoryBandwidth)
    # Between a loaded channel and a dozen of them.
    assert all(0.05 < rate.rate < 2000 for rate in section.rates)
    assert all(rate.spread >= 0 for rate in section.rates)
