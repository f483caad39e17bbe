"""What 8 sound H100s send to one another over NVLink, in pairs and together."""

from __future__ import annotations

from itertools import permutations

from ddoctor.evidence.cluster_probes import Collectives, End, Flow, LocalWork, Pairs, Sweep
from tests.healthy.host import HOST
from tests.healthy.probes import CURVE, PLACES, UNEVEN, sweep

# 256 MiB over 18 links of NVLink 4, with the answer (GB/s).
USUAL = 330.0

SECTIONS = (
    Pairs(
        host=HOST,
        backend="nccl",
        ends=tuple(End(place=place) for place in PLACES),
        flows=tuple(
            Flow(
                sender=sender,
                receiver=receiver,
                bytes=2**28,
                rates=(USUAL * UNEVEN[receiver], USUAL * UNEVEN[sender]),
            )
            for sender, receiver in permutations(range(8), 2)
        ),
        transport="P2P/CUMEM",
        work=tuple(
            LocalWork(
                place=place,
                seconds=tuple(0.2 * more for more in (1.04, 1.0, 1.01, 1.0, 1.02)),
                cpu=(0.97, 0.99, 0.99, 1.0, 0.99),
                queued=(0.01, 0.0, 0.0, 0.0, 0.0),
            )
            for place in PLACES
        ),
        rounds=7,
    ),
    Collectives(
        host=HOST,
        backend="nccl",
        ranks=PLACES,
        sweeps=(
            Sweep(
                collective="all-reduce",
                scope="all",
                ranks=tuple(range(8)),
                points=sweep({size: rate for size, rate in CURVE.items() if size >= 2**20}),
            ),
        ),
    ),
)
