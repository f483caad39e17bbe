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
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.named_models import named_models
from ddoctor.evidence.script import Script
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("first-failure-masked",)


LARGE = 60
"""GiB of weights in fp32, as FSDP's master copy has them, from which a gathered state matters."""


def in_a_launch(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """A checkpoint gathers a large model on rank 0."""
    kind = plan.launch.get("fsdp.state_dict_type")
    if kind is None or kind.value != "FULL_STATE_DICT" or not plan.strategy.startswith("FSDP"):
        return
    for one in named_models(plan, script):
        whole = 4e9 * one.billions / GIB
        if whole > LARGE:
            yield Finding(
                title="Each checkpoint gathers the whole model on rank 0",
                severity=Severity.NOTE,
                confidence=Confidence.LIKELY,
                because=f"{kind.name.rpartition('.')[2]} is {kind.value} ({kind.at}): each "
                f"checkpoint gathers {whole:,.0f} GiB in the memory of rank 0's host, while the "
                "other ranks wait",
                evidence=(Observation(name="gathered", value=round(whole), unit="GiB"),),
                fixes=(
                    Fix(
                        summary="let every rank save its own shard",
                        paste="fsdp_state_dict_type: SHARDED_STATE_DICT",
                        language="text",
                        caution="accelerate merge-weights makes one file of them at the end",
                    ),
                ),
            )
            return


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
