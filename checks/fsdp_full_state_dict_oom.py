"""Saving a checkpoint gathers the sharded model on one GPU, which runs out of memory.

FSDP shards the parameters because all of them do not fit on one GPU. A full state dict gathers them
again, on the GPU of rank 0 or of every rank, in addition to the memory already in use.

Symptoms: "CUDA out of memory" in ``state_dict()``, ``full_tensor()`` or ``get_model_state_dict()``,
at the first checkpoint.

To fix it, save a sharded checkpoint with ``torch.distributed.checkpoint``, or gather the state dict
in host memory (``cpu_offload=True``).
"""

# Above 150 lines: accelerate's file, torch's two interfaces and a run.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import cuda_oom, gpu_memory
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.named_models import named_models
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("first-failure-masked",)


LARGE = 60
"""GiB of weights in fp32, as FSDP's master copy has them, from which a gathered state matters."""

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
TYPES = (f"{FSDP1}.state_dict_type", f"{FSDP1}.set_state_dict_type")
OF_TORCH = "torch.distributed.checkpoint."
STATES = (f"{OF_TORCH}get_model_state_dict", f"{OF_TORCH}get_state_dict")


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


def on_every_gpu(plan: LaunchPlan, script: Script, gpus: Gpus | None) -> Iterator[Finding]:
    """A line gathers a model of known size on the GPU of every rank.

    Sources: torch/distributed/fsdp/api.py, FullStateDictConfig, whose defaults are no offload and
    all ranks; torch/distributed/checkpoint/state_dict.py, StateDictOptions.
    """
    line = next((one for one in script.calls if _gathers_on_gpus(one)), None)
    model = next(named_models(plan, script), None) if line is not None else None
    granted, named = gpu_memory.of_launch(plan, gpus)
    whole = model.nbytes / GIB if model is not None else 0.0
    if line is None or model is None or whole <= LARGE:
        return
    fails = bool(granted) and whole > granted
    room = f"; a GPU has {granted:,.0f} ({named})" if fails else ""
    yield Finding(
        severity=Severity.ERROR if fails else Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"{shown(line.at)} gathers the whole model on the GPU of every rank, and "
        f"{model.place} has {model.size}: {whole:,.0f} GiB next to the shards{room}",
        evidence=(Observation(name="gathered", value=round(whole), unit="GiB"),),
        fixes=(
            Fix.python(
                summary="gather it in host memory, on rank 0 only",
                paste="options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
                "state = get_model_state_dict(model, options=options)"
                if line.name in STATES
                else "config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)\n"
                "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):\n"
                "    state = model.state_dict()",
            ),
        ),
    )


def _gathers_on_gpus(call: SourceCall) -> bool:
    """Whether its options are all shown, and leave the whole state on the GPUs."""
    if call.name in TYPES:
        asks = "FULL_STATE_DICT" in " ".join((*call.arguments, *call.keywords.values()))
        given = call.argument("state_dict_config", 2)
        shows = "" if given in (None, "None") else _written("state_dict_config", 2, call)
        return asks and (not shows or _is_off("FullStateDictConfig", "offload_to_cpu", shows))
    shows = _written("options", 1, call) or _written("options", 2, call)
    asks = call.name in STATES and "full_state_dict=True" in shows
    return asks and _is_off("StateDictOptions", "cpu_offload", shows)


def _written(keyword: str, position: int, call: SourceCall) -> str:
    """An argument with what it is assigned from."""
    values = call.values.get(keyword, call.values.get(str(position), ""))
    return f"{call.argument(keyword, position) or ''} {values}".strip()


def _is_off(name: str, option: str, text: str) -> bool:
    """Whether a call is shown that leaves an option off."""
    given = re.search(rf"{name}\(([^()]*)\)", text)
    return given is not None and (option not in given[1] or f"{option}=False" in given[1])


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
