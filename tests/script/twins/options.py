"""Options of DDP and of torch's backends."""

from __future__ import annotations

from tests.script.sources import ACCELERATE, SET_UP, ddp

KWARGS = "from accelerate{} import DistributedDataParallelKwargs as Wraps\n"


def wrapped(options: str, module: str = "") -> str:
    handler = f"Accelerator(kwargs_handlers=[Wraps({options})], "
    return KWARGS.format(module) + ACCELERATE.replace("Accelerator(g", f"{handler}g")


BOTH = "find_unused_parameters=True, static_graph=True"
TWINS = {
    "a search beside a static graph, by accelerate": (
        "find-unused-parameters-unneeded",
        wrapped(BOTH),
        wrapped("static_graph=True"),
        wrapped("find_unused_parameters=True"),
    ),
    "the same by accelerate's utilities": (
        "find-unused-parameters-unneeded",
        wrapped(BOTH, ".utils"),
        wrapped(BOTH.replace("True", "args.searches", 1), ".utils"),
        wrapped(BOTH.replace("static_graph=True", "static_graph=False"), ".utils"),
    ),
}
