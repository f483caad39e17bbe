from __future__ import annotations

from ddoctor.evidence.probes import Matmul
from ddoctor.evidence.section import Evidence


def test_every_rank_reaches_something_and_the_result_is_right(evidence: Evidence) -> None:
    (section,) = evidence.all(Matmul)
    assert section.wrong == ()
    assert section.dtype == "float32"
    assert [rate.place.rank for rate in section.rates] == [0, 1]
    # Between a loaded core and a large socket.
    assert all(1e-4 < rate.rate < 100 for rate in section.rates)
