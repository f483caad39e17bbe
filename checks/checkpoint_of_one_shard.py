"""A checkpoint holds the parts that one rank has of a sharded model, and lacks those of the others.

``fully_shard`` (FSDP2) gives each rank a part of each parameter, as a DTensor. ``state_dict()``
returns these parts, without any collective. A file that one rank saves so, or that all ranks save
under one name, has a part of the model.

Symptoms: no error when it is saved; the file is too small by the number of ranks. When it is
loaded, shapes do not fit, or "torch.distributed.tensor must be imported to load DTensors".

To fix it, gather the state on all ranks first, or save by ``torch.distributed.checkpoint``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.script_source import is_plain, shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity

SHARDS = "torch.distributed.fsdp.fully_shard"
EXPLAINS = ("shared-filesystem-race",)
STATE = re.compile(r"(?P<model>[\w.]+)\.state_dict\(\)")
GATHERS = ("get_model_state_dict", "get_state_dict", "full_tensor")


def in_the_source(script: Script) -> Iterator[Finding]:
    sharded = {one.argument("module", 0) for one in script.of(SHARDS)}
    gathers = any(one.name.rpartition(".")[2] in GATHERS for one in script.calls)
    if not sharded or gathers or not is_plain(script):
        return
    for one in script.of("torch.save"):
        saved = f"{one.argument('obj', 0)} {one.held('obj', 0)}"
        models = [found["model"] for found in STATE.finditer(saved)]
        path = f"{one.argument('f', 1)} {one.held('f', 1)}"
        # Each rank may save its own parts under its own name.
        if not {*models} & sharded or "rank" in path.lower():
            continue
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one.at)} saves the parts of {models[0]} that one rank has: fully_shard "
                "divides each parameter among the ranks, and state_dict() gathers nothing"
            ),
            fixes=(
                Fix.python(
                    summary="gather the state on all ranks, and save it on one",
                    paste=(
                        "options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
                        f"state = get_model_state_dict({models[0]}, options=options)"
                        "  # on all ranks\n"
                        "if torch.distributed.get_rank() == 0:\n"
                        "    torch.save(state, path)"
                    ),
                ),
                Fix.python(
                    summary="or let each rank save its parts, in a form that any number can load",
                    paste='torch.distributed.checkpoint.save({"model": '
                    f'{models[0]}.state_dict()}}, checkpoint_id="checkpoint")',
                ),
            ),
        )
        return
