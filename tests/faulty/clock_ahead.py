"""Two ranks that are told to be on hosts of their own; the clock of the second is 5 s ahead."""

import time
from importlib import import_module
from typing import Any
from unittest.mock import patch

from ddoctor.probing.world import ProbeWorld
from tests.faulty import two_hosts

AHEAD = 5.0


def measure(world: ProbeWorld) -> Any:
    module = import_module("ddoctor.probes.clock_skew")
    with patch.object(module, "now", lambda: time.time() + AHEAD * world.rank):
        return two_hosts.measure(world)
