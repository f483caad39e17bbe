from __future__ import annotations

from ddoctor.evidence.probes import Matmul
from ddoctor.evidence.section import Evidence


def test_every_rank_reaches_something_and_the_result_is_right(evidence: Evidence) -> None:
    (section,) = evidence.all(Matmul)
    assert section.wrong == ()
    assert len(section.rates) == 2 or section.dtype != "float32"
    # A CPU core gives at least 1 GFLOP/s, and no device of today 10 000 TFLOP/s.
    assert all(1e-3 < rate.rate < 1e4 for rate in section.rates)
    assert [rate.place.rank for rate in section.rates] == list(range(len(section.rates)))
