"""Saving a checkpoint gathers the sharded model on one GPU, which runs out of memory.

FSDP shards the parameters because all of them do not fit on one GPU. A full state dict gathers them
again, on the GPU of rank 0 or of every rank, in addition to the memory already in use.

Symptoms: "CUDA out of memory" in ``state_dict()``, ``full_tensor()`` or ``get_model_state_dict()``,
at the first checkpoint.

To fix it, save a sharded checkpoint with ``torch.distributed.checkpoint``, or gather the state dict
in host memory (``cpu_offload=True``).
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import cuda_oom
from ddoctor.analysis.describe import GIB
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Finding, Fix

EXPLAINS = ("first-failure-masked",)


def gathered(run: TrainingRun, wrapping: Wrapping | None) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "state-dict")
    if not found:
        return
    models = wrapping.wrappers if wrapping is not None else ()
    size = max((one.parameter_bytes for one in models), default=0)
    whole = f"; all parameters together are {size / GIB:.1f} GiB" if size else ""
    fixes = (
        Fix.python(
            summary="let every rank save its own shard",
            paste=(
                "import torch.distributed.checkpoint as dcp\n\n"
                "dcp.save({'model': model.state_dict()}, checkpoint_id='checkpoint')\n"
                "# accelerate: fsdp_state_dict_type: SHARDED_STATE_DICT"
            ),
            caution="to convert it to a single file, run "
            "python -m torch.distributed.checkpoint.format_utils dcp_to_torch",
        ),
        Fix.python(
            summary="or gather it in host memory, on rank 0 only",
            paste=(
                "options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
                "get_model_state_dict(model, options=options)"
            ),
        ),
    )
    yield cuda_oom.finding(found, run, f", while gathering a sharded model{whole}", fixes)
