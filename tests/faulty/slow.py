"""Every rank works on and on."""

import time

from ddoctor.probing.world import ProbeWorld


def measure(world: ProbeWorld) -> None:
    for step in range(10_000):
        world.doing(f"step {step}")
        time.sleep(0.1)
