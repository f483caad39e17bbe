"""A sound training on 8 H100s, looked at from outside."""

from __future__ import annotations

from ddoctor.evidence.build_locks import BuildLocks
from tests.healthy.host import HOST
from tests.live_look import look, moving

SECTIONS = (
    look(*(moving(rank, workers=4) for rank in range(8)), host=HOST),
    BuildLocks(host=HOST),
)
