"""The head of a report on a launch command: what it starts."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ddoctor.analysis import script_plan
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.meeting_place import meeting
from ddoctor.analysis.trained_states import FSDP, SHARDED, trained_states
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import TrainingRun
from ddoctor.report import launch_length, launch_megatron
from ddoctor.report.places import listed
from ddoctor.report.wording import counted

MOST_VARIABLES = 6
DEFAULT = "the default of"


def starts(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line."""
    for launch in evidence.all(Launch):
        plan = LaunchPlan.derive(launch, evidence.of(Gpus, launch.host))
        script = evidence.of(Script, launch.host)
        yield "starts", _starts(plan)
        if told := _won(plan, "ranks", "hosts", "ranks-per-host", "precision", "accumulation"):
            yield "decided", told
        if evidence.of_run(TrainingRun) is None:
            yield "script", f"{'-m ' if launch.is_module else ''}{launch.script}"
        if told := _rendezvous(launch):
            yield "rendezvous", told
        degrees = [f"{letters} {one.value}" for letters, one in plan.degrees.items()]
        strategy, precision = _strategy(plan, script)
        parts = (strategy, *degrees, *launch_megatron.words(plan), precision)
        if told := ", ".join(filter(None, parts)):
            yield "parallelism", told
        if told := _backend(plan, script):
            yield "backend", told
        if told := _batch(plan) or _own_batch(plan, script):
            yield "batch", told
            if choices := [f"{size} × {times}" for size, times in plan.same_batch]:
                yield "same batch", f"a rank's micro-batch × accumulation: {', '.join(choices)}"
        if plan.rate is not None:
            yield "learning rate", f"{plan.rate.value} ({plan.rate.at})"
        if told := _states(plan, script):
            yield "model", told
        yield from launch_length.rows(plan, script)
        if plan.variables:
            rows = [f"{one.name[4:]}={one.value}" for one in plan.variables]
            yield "environment", listed(rows[:MOST_VARIABLES])
        if launch.files:
            yield "read", listed(launch.files)
        if launch.unresolved:
            yield (
                "not known here",
                listed([f"{one.value} ({one.at})" for one in launch.unresolved][:MOST_VARIABLES]),
            )


def _states(plan: LaunchPlan, script: Script | None) -> str:
    """The model, and what each strategy would keep of it on each GPU."""
    for one in trained_states(plan, script):
        # FSDP shards as ZeRO-3 does.
        ways = {name: name.replace("ZeRO-3", "ZeRO-3 or FSDP") for name in SHARDED if name != FSDP}
        sizes = [f"{words} {one.under(name).model / GIB:,.0f}" for name, words in ways.items()]
        parts = "weights, gradients and AdamW's states on each GPU"
        return f"{one.model.size}; {parts}, in GiB: {', '.join(sizes)}"
    return ""


def _starts(plan: LaunchPlan) -> str:
    launch = plan.launch
    by = " in ".join((launch.launcher, *reversed(launch.around)))
    hosts, each, ranks = launch.hosts, plan.each, plan.ranks
    if (devices := launch.get("xla-devices")) is not None:
        of = "this host" if devices.value == "host" else f"the pod {devices.value}"
        return f"a process for each TPU device of {of}, by {by}"
    if ranks == 1:
        return f"one process, by {by}"
    if hosts is not None and each is not None and hosts * each == ranks:
        return f"{counted(hosts, 'host')} × {counted(each, 'rank')}, by {by}"
    if ranks is not None:
        return f"{counted(ranks, 'rank')}, by {by}"
    asked = launch.get("hosts")
    if asked is not None and ":" in asked.value and each is not None:
        return f"{asked.value.replace(':', ' to ')} hosts × {counted(each, 'rank')}, by {by}"
    known = f"{counted(hosts, 'host')} × " if hosts is not None else ""
    if plan.on_all_gpus:
        return f"{known}a rank for each GPU, by {by}"
    return f"{known}a number of ranks that is not known here, by {by}"


def _rendezvous(launch: Launch) -> str:
    """The address at which ranks of several hosts meet."""
    meets, port = meeting(launch), launch.get("main-port", "env.MASTER_PORT")
    if meets is None or (launch.hosts or 1) < 2 or "$" in meets.value:
        return ""
    known = port is not None and port.number is not None and ":" not in meets.value
    end = f":{port.value}" if known and port is not None else ""
    return f"{meets.value}{end} ({meets.at})"


def _won(plan: LaunchPlan, *names: str) -> str:
    """Of values that differ between two places: which one counts."""
    told = []
    for name in names:
        every = plan.launch.all(name)
        written = [*every[:1], *(one for one in every[1:] if DEFAULT not in one.origin)]
        if name == "accumulation" and not plan.by_deepspeed:
            own = plan.of_accelerator("gradient_accumulation_steps")
            known = own is not None and own.number is not None
            written = [one for one in (plan.accumulated, own) if one is not None and known]
        if name == "precision" and plan.of_accelerator("mixed_precision") is not None:
            written = [one for one in (plan.precision,) if one is not None] + written
        lost = [one for one in written[1:] if one.value != written[0].value]
        if lost:
            than = listed([f"{one.value} of {_place(one)}" for one in lost])
            first = f"{written[0].value} of {_place(written[0])}"
            told.append(f"{name.replace('-', ' ')} {first}, not {than}")
    return "; ".join(told)


def _place(setting: Setting) -> str:
    """Where it is written, with the name of a variable."""
    variable = setting.name.startswith("env.")
    return f"{setting.name[4:]} ({setting.at})" if variable else setting.at


def _strategy(plan: LaunchPlan, script: Script | None) -> tuple[str, str]:
    """The strategy and the precision, by the files, else by the script."""
    strategy, precision = plan.strategy, _precision(plan)
    if script is not None and plan.ranks != 1:
        strategy = strategy or script_plan.strategy(script)
    if script is not None:
        precision = precision or script_plan.autocast(script)
    return strategy, precision


def _backend(plan: LaunchPlan, script: Script | None) -> str:
    if script is None or plan.ranks == 1:
        return ""
    name, place = script_plan.backend(script)
    device = script_plan.devices(script)
    return ", ".join(
        filter(
            None,
            (
                f"{name} ({place})" if name else "",
                f"a GPU for each local rank ({device})" if device else "",
            ),
        )
    )


def _own_batch(plan: LaunchPlan, script: Script | None) -> str:
    """The batch that a line of the script gives, without accumulation."""
    found = script_plan.micro_batch(script) if script is not None else None
    if found is None or plan.degrees or plan.split is not None:
        return ""
    number, place = found
    if plan.ranks is None or (script is not None and script.accumulates is not None):
        return f"{number} samples a rank ({place})"
    whole = f"{number * plan.ranks * plan.accumulation:,} samples a step"
    times = f" × {plan.accumulation} micro-batches" if plan.accumulation > 1 else ""
    return f"{number} a rank ({place}) × {counted(plan.ranks, 'rank')}{times} = {whole}"


def _precision(plan: LaunchPlan) -> str:
    found = plan.precision
    return "" if found is None else {"no": "fp32"}.get(found.value, found.value)


def _batch(plan: LaunchPlan) -> str:
    micro, ranks = plan.micro_batch, plan.ranks
    if micro is None:
        return ""
    if plan.batch is None or ranks is None:
        return f"{micro.value} samples a rank ({micro.at})"
    times = f" × {plan.accumulation} micro-batches" if plan.accumulation > 1 else ""
    each = f"{micro.value} a rank ({micro.at})"
    shared = prod(one.number or 1 for one in plan.degrees.values())
    models = counted(ranks, "rank") if shared == 1 else counted(ranks // shared, "model")
    whole = plan.loader_batch
    why = ""
    if whole is not None and plan.split is not None and whole.value != micro.value:
        each = f"{micro.value} a rank"
        why = f": split_batches ({plan.split.at}) divides the loader's {whole.value} ({whole.at})"
    return f"{each} × {models}{times} = {plan.batch:,} samples a step{why}"
