"""What 8 sound H100s sustain: warm after a few seconds, and then steady."""

from __future__ import annotations

from ddoctor.evidence.probes import Burn, Burning
from tests.healthy.host import HOST
from tests.healthy.probes import PLACES, UNEVEN

# All of them clock down a little as they warm up, and run into their power limit.
COURSE = (1.0, 0.98, *(0.97 + 0.002 * (second % 3) for second in range(58)))

SECTIONS = (
    Burn(
        host=HOST,
        dtype="bfloat16",
        size=8192,
        seconds=60.0,
        ranks=tuple(
            Burning(
                place=place,
                rates=tuple(720.0 * factor * share for share in COURSE),
                products=39_000,
                temperatures=tuple(min(45 + second, 68) for second in range(60)),
                limited_by=("sw_power_cap",),
            )
            for place, factor in zip(PLACES, UNEVEN, strict=True)
        ),
    ),
)
