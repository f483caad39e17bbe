"""Every rank loads the whole model into host memory before FSDP shards it.

``from_pretrained`` in a script that eight ranks run creates eight models. FSDP then keeps an eighth
of each. Until then the host holds all of them, and the kernel's OOM killer may kill a rank.

Symptoms: host memory fills up while the model loads, and a rank ends with exit code -9 before the
first step.

To fix it, let only rank 0 load the model (``fsdp_cpu_ram_efficient_loading``), or create it on the
meta device and load a sharded checkpoint.
"""

# Above 150 lines: four ways (a plan, a source, a run, a killed run) share the fixes.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.named_models import memory, named_models
from ddoctor.analysis.script_source import WRAPPERS
from ddoctor.evidence.plan import GPUS_PER_HOST, Plan
from ddoctor.evidence.script import Script
from ddoctor.evidence.training import RankStart, Starts, TrainingRun
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("host-ram-oom",)

# The rest is for the system, the page cache of the weights, and the DataLoader workers.
OF_THE_HOST = 0.8
SIGKILL = 9
# Ranks that load the same model grow alike; if only rank 0 loads it, the others hardly grow.
ALIKE = 0.8
SHARDING = WRAPPERS[1:]
READS = re.compile(r"from_pretrained|from_config|load_state_dict|load_checkpoint|torch\.load\b")
MAKES = re.compile(
    r"^(transformers|diffusers|safetensors)/|^torch/serialization\.py|^nn/init\.py"
    r"|^modules/\w+\.py:(__init__|reset_parameters)$"
)


def in_a_plan(plan: Plan) -> Iterator[Finding]:
    row = plan.recommended
    if row is None or plan.host_memory is None or not row.strategy.startswith("fsdp"):
        return
    ranks = min(row.gpus, GPUS_PER_HOST)
    whole = ranks * plan.checkpoint
    if ranks < 2 or whole <= OF_THE_HOST * plan.host_memory:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{ranks} ranks of a host that each load the whole model need {whole / GIB:.0f} GiB, "
            f"and the host has {plan.host_memory / GIB:.0f}; the script shows whether they do"
        ),
        evidence=(
            Observation(name="model size", value=round(plan.checkpoint / GIB, 1), unit="GiB"),
            Observation(name="ranks per host", value=ranks),
        ),
        cost=Cost(value=round((whole - OF_THE_HOST * plan.host_memory) / GIB, 1), unit="GiB"),
        fixes=_FIXES,
    )


LARGE = 200
"""GiB of all ranks of a host together: less fits on nearly every host with several GPUs."""


def in_the_source(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Each rank calls from_pretrained for a model that is sharded afterwards."""
    each = plan.each or 0
    zero = plan.strategy == "DeepSpeed ZeRO-3"
    shards = zero or plan.strategy.startswith("FSDP") or bool(script.of(*SHARDING))
    # With these, transformers itself loads on one rank only, or in parts.
    helps = plan.launch.on("fsdp.cpu_ram_efficient_loading") or script.loads_on_one_rank
    by_frameworks = {"Trainer", "TRL", "accelerate"} & {one.framework for one in script.imports}
    in_parts = zero and (script.in_parts is not None or by_frameworks)
    granted = memory(plan.launch.get("memory-per-host"))
    matters = shards or granted is not None
    if each < 2 or not matters or helps or in_parts or script.fills_in is not None:
        return
    most = granted * OF_THE_HOST if granted is not None else LARGE
    for one in named_models(plan, script):
        whole = each * one.nbytes / GIB
        if whole > most:
            limit = f", and each host gets {granted:,.0f}" if granted is not None else ""
            before = " before the model is sharded" if shards else ""
            fixes = _OF_FSDP1 if script.of(SHARDING[0]) else _FIXES
            yield Finding(
                title="" if shards else "The ranks of a host load more than its memory",
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY if granted is not None else Confidence.POSSIBLE,
                because=(
                    f"each of {each} ranks of a host runs {one.place}{before}: "
                    f"{one.size} take {one.nbytes / GIB:,.0f} "
                    f"GiB, {whole:,.0f} together{limit}"
                ),
                evidence=(
                    Observation(name="host memory of all ranks", value=round(whole), unit="GiB"),
                ),
                fixes=fixes if shards else (_TO_THE_GPU,),
            )
            return


def sharded_in_training(starts: Starts, wrapping: Wrapping) -> Iterator[Finding]:
    models = [one for one in wrapping.wrappers if one.kind.startswith("fsdp")]
    for rows in _crowded(starts):
        ranks = {row.rank for row in rows}
        whole = _whole([one for one in models if one.rank in ranks], models)
        together, memory = len(rows) * whole, rows[0].memory
        if whole and together > OF_THE_HOST * memory and all(row.grown >= whole for row in rows):
            yield _finding(
                Severity.WARNING,
                f"each of {len(rows)} ranks of {rows[0].host} loaded the whole model of "
                f"{whole / GIB:.3g} GiB into host memory before FSDP sharded it: together "
                f"{together / GIB:.3g} GiB, and the host has {memory / GIB:.3g}",
                rows,
            )


def killed_before_training(run: TrainingRun, starts: Starts) -> Iterator[Finding]:
    killed = {
        one.host: one
        for one in reversed(run.failures)
        if one.exit_code == -SIGKILL and not one.steps
    }
    for rows in _crowded(starts):
        one, grown, memory = killed.get(rows[0].host), [row.grown for row in rows], rows[0].memory
        equal = min(grown) >= ALIKE * max(grown)
        loads = all(
            row.fsdp and (READS.search(row.text) or MAKES.search(row.inner)) for row in rows
        )
        if one is not None and equal and loads and sum(grown) > OF_THE_HOST * memory:
            yield _finding(
                Severity.ERROR,
                f"{endings.who(one)} was killed by SIGKILL before its first step, while each "
                f"of {len(rows)} ranks of {rows[0].host} loaded a model into host memory, at "
                f"{rows[0].place}: together they had taken {sum(grown) / GIB:.3g} GiB, and the "
                f"host has {memory / GIB:.3g}",
                rows,
            )


def _crowded(starts: Starts) -> Iterator[Sequence[RankStart]]:
    """The ranks of each host that has more than one."""
    for host in dict.fromkeys(row.host for row in starts.ranks):
        rows = [row for row in starts.ranks if row.host == host]
        if len(rows) > 1:
            yield rows


def _whole(own: Sequence[Wrapper], models: Sequence[Wrapper]) -> int:
    """Bytes of the model before sharding; 0 if unknown."""
    if not own:
        return 0
    if own[0].kind == "fsdp2":
        first = own[0].rank
        return sum(one.parameter_bytes for one in own if one.rank == first)
    # FSDP1 counts only the shard of the rank.
    shards = own if own[0].sharding == "within-hosts" else models
    return sum(one.parameter_bytes for one in shards)


def _finding(severity: Severity, because: str, rows: Sequence[RankStart]) -> Finding:
    return Finding(
        severity=severity,
        confidence=Confidence.LIKELY,
        because=because,
        evidence=tuple(
            Observation(
                name=f"host memory of rank {row.rank} before its first step",
                value=round(row.grown / GIB, 2),
                unit="GiB",
                source="RssAnon and RssShmem of /proc/PID/status",
            )
            for row in rows
        ),
        where=Where.of(rows),
        fixes=_FIXES,
    )


_FIXES = (
    Fix(
        summary="let only rank 0 load the model, and send each rank its shard",
        paste=(
            "fsdp_config:\n"
            "  fsdp_version: 2\n"
            "  fsdp_cpu_ram_efficient_loading: true   # of accelerate\n"
        ),
        language="yaml",
        caution="call from_pretrained only after Accelerator() or TrainingArguments()",
    ),
    Fix.python(
        summary="or create the model on the meta device, and load a sharded checkpoint",
        paste=(
            "with torch.device('meta'):\n"
            "    model = Model(config)\n"
            "for block in model.layers:\n"
            "    fully_shard(block)\n"
            "fully_shard(model)\n"
            "model.to_empty(device='cuda')\n"
            "dcp.load({'model': model.state_dict()}, checkpoint_id='checkpoint')"
        ),
    ),
)
_TO_THE_GPU = Fix.python(
    summary="load the weights on the GPU of the rank, or ask for more memory",
    paste='AutoModelForCausalLM.from_pretrained(name, device_map={"": local_rank})',
)
_OF_FSDP1 = (
    Fix.python(
        summary="let only rank 0 load the model, and let FSDP send each rank its shard",
        paste=(
            "if rank == 0:\n"
            "    model = AutoModelForCausalLM.from_pretrained(name)\n"
            "else:\n"
            "    with torch.device('meta'):\n"
            "        config = AutoConfig.from_pretrained(name)\n"
            "        model = AutoModelForCausalLM.from_config(config)\n\n"
            "def make_room(module):\n"
            "    return module.to_empty(device='cuda', recurse=False)\n\n"
            "model = FSDP(\n"
            "    model, auto_wrap_policy=policy, device_id=local_rank, sync_module_states=True,\n"
            "    param_init_fn=None if rank == 0 else make_room,\n"
            ")"
        ),
        caution="the type of the weights must be the same on all ranks: give both calls one dtype",
    ),
)
