"""The burn, for two seconds."""

from dataclasses import replace
from importlib import import_module
from typing import Any

from ddoctor.probing.world import ProbeWorld


def measure(world: ProbeWorld) -> Any:
    return import_module("ddoctor.probes.burn").measure(replace(world, burn=2.0))
