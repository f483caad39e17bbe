"""A sweep of a sound training on 8 H100s: most of the memory is used, and enough of it is left."""

from __future__ import annotations

from tests.healthy.host import HOST
from tests.healthy.probes import PLACES
from tests.memory_sweep.sample import swept

SECTIONS = (
    swept(
        24,
        fixed=18.0,
        each=2.0,
        limits=(78.0,) * 8,
        step=0.02,
        sample=0.01,
        places=PLACES,
        host=HOST,
    ),
)
