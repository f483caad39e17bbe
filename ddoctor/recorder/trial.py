"""Changes of the script's settings, tried from outside: a control run."""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections.abc import Mapping
from typing import Any

from ddoctor.recorder.swaps import replaces

VARIABLE = "DDOCTOR_TRIAL"
"""The variable with the list of changes as in ``Fix.settings``, as JSON."""


def changes() -> Mapping[str, Any]:
    """Each changed setting, and its value."""
    entries = (one.partition("=") for one in json.loads(os.environ.get(VARIABLE, "[]")))
    return {name: _value(text) for name, _, text in entries}


def loader_settings(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a DataLoader, with the changes."""
    wanted = _of("loader")
    # dataset, batch_size, shuffle, sampler, batch_sampler come before the first of them.
    if not wanted or len(args) > 5:
        return kwargs
    settings = {**kwargs, **wanted}
    if not settings.get("num_workers"):
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
            settings.pop(name, None)
    return settings


def apply() -> None:
    """Apply the changes to torch, and wrap DDP's arguments."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    for name, value in _of("torch").items():
        match name:
            case "threads":
                torch.set_num_threads(value)
                # The script's own word comes later, and is what is tried.
                setattr(torch, "set_num_threads", lambda number: None)  # noqa: B010
            case "affinity":
                os.sched_setaffinity(0, range(os.cpu_count() or 1))
                setattr(os, "sched_setaffinity", lambda pid, mask: None)  # noqa: B010
            case "matmul_precision":
                torch.set_float32_matmul_precision(value)
    wanted = _of("ddp")
    if not wanted:
        return
    init: Any = DistributedDataParallel.__init__
    signature = inspect.signature(init)
    # Its name from torch 2.13 on, which goes before the old one where both are given.
    if "forward_sync_buffers" in signature.parameters and "broadcast_buffers" in wanted:
        wanted["forward_sync_buffers"] = wanted.pop("broadcast_buffers")

    @replaces(DistributedDataParallel, "__init__")
    def initialise(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.update(wanted)
        with warnings.catch_warnings():
            # The script has had its own warning of what is outdated.
            warnings.simplefilter("ignore", FutureWarning)
            init(*bound.args, **bound.kwargs)


def _of(family: str) -> dict[str, Any]:
    return {
        name.partition(".")[2]: value
        for name, value in changes().items()
        if name.partition(".")[0] == family
    }


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
