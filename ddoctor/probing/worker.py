"""`python -m ddoctor.probing.worker NAME…`: one measuring rank; its supervisor starts it."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import msgspec

from ddoctor import discovery
from ddoctor.errors import DoctorError
from ddoctor.probing.journal import Journal
from ddoctor.probing.sweep_request import SweepRequest
from ddoctor.probing.world import BURN_SECONDS, ProbeWorld, Skip, join, usable_gpus

# Share of the usual time: smaller largest sizes, fewer rounds of the large ones.
QUICK = 0.25


def main() -> int:
    """Join the other ranks and run the probes one after the other, on all ranks together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("probes", nargs="+", help="names of probes, or modules with a dot")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the journals")
    parser.add_argument("--data", type=Path, required=True, help="folder of the training data")
    parser.add_argument("--gpus-in-use", default="", help="why probes must not use the GPUs")
    parser.add_argument("--quick", action="store_true", help="measure for a quarter of the time")
    parser.add_argument("--burn", type=float, default=BURN_SECONDS, help="seconds of the burn")
    request = msgspec.json.Decoder(SweepRequest).decode
    parser.add_argument("--headroom", type=request, help="training whose memory to sweep")
    parser.add_argument("--store-prefix", default="", help="prefix of all keys in the store")
    arguments = parser.parse_args()

    journal = Journal(arguments.folder, int(os.environ["RANK"]))
    try:
        journal.write("loading torch")
        import torch.distributed

        gpus = not arguments.gpus_in_use and usable_gpus() > 0
        world = replace(
            join(journal, arguments.folder, gpus=gpus, store_prefix=arguments.store_prefix),
            data=arguments.data,
            share_of_time=QUICK if arguments.quick else 1.0,
            burn=arguments.burn,
            headroom=arguments.headroom,
        )
        for name in arguments.probes:
            journal.probe = name
            _run(name, world, arguments.gpus_in_use)
        torch.distributed.destroy_process_group()
    except Exception as error:
        kind = "" if isinstance(error, DoctorError) else f"{type(error).__name__}: "
        journal.write("failing", outcome="failed", reason=f"{kind}{error}")
        raise
    return 0


def _run(name: str, world: ProbeWorld, gpus_in_use: str) -> None:
    world.doing(f"beginning {name}")
    module = import_module(discovery.offer("ddoctor.probes", name).module)
    try:
        if gpus_in_use and getattr(module, "USES_DEVICE", True):
            raise Skip(gpus_in_use)
        section = module.measure(world)
    except Skip as reason:
        world.journal.write("skipping", outcome="skipped", reason=str(reason))
    else:
        world.journal.write("done", outcome="completed", section=section)
    world.meet()


if __name__ == "__main__":
    sys.exit(main())
