"""The plan as a table: strategies × numbers of GPUs, with the parts of one GPU's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from math import floor, log10

from ddoctor.evidence.plan import ModelParallel, Plan, PlanRow, Schedule, StepTime, Strategy
from ddoctor.evidence.section import Evidence
from ddoctor.report import plan_host, plan_lengths, plan_method
from ddoctor.report.wording import Grid, counted

GIB = 2**30
NAMES: Mapping[Strategy, str] = {
    "one-gpu": "one GPU",
    "one-copy": "one copy",
    "ddp": "DDP",
    "fsdp-gradients": "FSDP grad-op",
    "fsdp": "FSDP",
    "fsdp-hybrid": "FSDP hybrid",
    "fsdp-offload": "FSDP on CPU",
    "zero-1": "ZeRO-1",
    "zero-2": "ZeRO-2",
    "zero-3": "ZeRO-3",
    "zero-2-offload": "ZeRO-2 offload",
    "zero-3-offload": "ZeRO-3 offload",
    "zero-3-cpu": "ZeRO-3 on CPU",
    "zero-3-nvme": "ZeRO-3 NVMe",
}
HEADS = {
    "parameters": "param.",
    "gradients": "grad.",
    "optimizer": "optim.",
    "reference": "ref.",
    "activations": "activ.",
    "logits": "logits",
    "temporaries": "temp.",
    "communication": "comm.",
    "generation": "gener.",
    "unused": "unused",
    "context": "CUDA",
}
NARROW = {
    "model": ("parameters", "gradients", "optimizer", "reference"),
    "step": ("activations", "logits", "temporaries", "communication", "generation", "unused"),
    "CUDA": ("context",),
}
WITHOUT = "without compile"
TAKEN = "← this"
UNKNOWN = "?"
MOST_DECIMALS = 9
LONGEST_SECONDS = 1000 * 365 * 86_400.0
"""Beyond, a plan's numbers are not meant."""
DERIVED = "~"
"""Marks a step time that is derived from one on other GPUs."""


def tables(evidence: Evidence) -> tuple[Grid, ...]:
    """Return the table of each plan."""
    return tuple(map(table, evidence.all(Plan)))


def table(plan: Plan, *, narrow: int = 0) -> Grid:
    """Return the table with each part that some row has.

    ``narrow``: 1 joins parts to save room, 2 leaves all but their total out.
    """
    timed = any(row.step is not None for row in plan.rows)
    groups = NARROW if narrow else {head: (name,) for name, head in HEADS.items()}
    if narrow > 1:
        groups = {}
    lines = _lines(plan)
    sizes = [dict(row.parts.named()) for row in lines]
    columns = {
        head: [sum(parts[name] for name in names) for parts in sizes]
        for head, names in groups.items()
    }
    taken = TAKEN
    if narrow and timed:
        # Of all parts, it differs least from row to row.
        columns.pop("CUDA", None)
        taken = TAKEN[0]
    columns = {head: column for head, column in columns.items() if any(column)}
    columns["total"] = [row.parts.total for row in lines]
    if narrow < 2:
        columns["free"] = [plan.device_memory - row.parts.total for row in lines]
    # Without room for it, the reason for the recommendation says so.
    if any(row.host for row in plan.rows) and not narrow:
        columns["host"] = [row.host for row in lines]
    if any(row.nvme for row in plan.rows) and not narrow:
        columns["NVMe"] = [row.nvme for row in lines]
    rows = tuple(
        (
            WITHOUT if row is plan.without_compile else NAMES[row.strategy],
            str(row.gpus),
            *(gib(column[place]) for column in columns.values()),
            *(_times(plan, row) if timed else ()),
            row.fit.replace("-", " ") + (f" {taken}" if place == plan.chosen else ""),
        )
        for place, row in enumerate(lines)
    )
    title = "GiB on each GPU"
    if "host" in columns:
        title += "; host: additional host memory of each rank"
    if "NVMe" in columns:
        title += "; NVMe: disk space of each rank"
    if timed:
        derived = f"as measured, {DERIVED}: derived" if plan.measured else "by roofline"
        title += f"; step times {derived}"
    times = ("s/step", "samples/s") if timed else ()
    head = ("strategy", "GPUs", *columns, *times, "")
    return Grid(title=title, head=head, rows=rows, chosen=plan.chosen)


def _lines(plan: Plan) -> list[PlanRow]:
    """Return the rows, and below the recommended one the same without torch.compile."""
    found, other = [*plan.rows], plan.without_compile
    if other is not None:
        alike = (
            place
            for place, row in enumerate(found)
            if (row.strategy, row.gpus) == (other.strategy, other.gpus)
        )
        found.insert(next(alike, len(found) - 1) + 1, other)
    return found


def _times(plan: Plan, row: PlanRow) -> tuple[str, str]:
    derived = row.step is not None and row.step.source == "by the measured step"
    mark = DERIVED if derived else ""
    each = three(row.step.seconds) if row.step is not None else UNKNOWN
    return mark + each, three(plan.samples_per_second(row))


def seen(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line of the report's head."""
    for plan in evidence.all(Plan):
        for file in dict.fromkeys(one.file for one in plan.taken):
            told = (f"{one.name} {one.value}".rstrip() for one in plan.taken if one.file == file)
            yield "from", f"{file}: {', '.join(told)}"
        compiled = ", each block compiled" if plan.without_compile is not None else ""
        how = f"{plan.precision}, {plan.optimizer}{_checkpointed(plan.checkpointing)}{compiled}"
        samples = "" if plan.sequence is None else f", samples of {plan.sequence} tokens"
        yield "model", f"{plan.model}, {how}{samples}"
        if plan.eval_batch is not None:
            each = f"batches of {counted(plan.eval_batch, 'sample')} on each GPU, without gradients"
            yield "evaluation", f"{each}; what a metric keeps of them is not included"
        yield from plan_method.lines(plan)
        yield from plan_lengths.lines(plan)
        parallel = plan.rows[0].parallel
        if parallel.words:
            yield "parallel", f"{parallel.words}: one copy of the model on {_gpus(parallel)}"
        yield "device", f"{plan.device}, {gib(plan.device_memory)} GiB available to a process"
        if plan.chosen is not None:
            yield "recommended", f"{plan.rows[plan.chosen].title}: {plan.reason}{_most(plan)}"
            yield from _settings(plan)
            yield from _step(plan, plan.rows[plan.chosen])
        yield from _schedule(plan)
        if plan.checkpoint_bf16 is not None:
            yield (
                "checkpoint",
                f"{plan.checkpoint / 1e9:.1f} GB with weights as trained (fp32), "
                f"{plan.checkpoint_bf16 / 1e9:.1f} GB in bf16",
            )
        yield from plan_host.lines(plan)
        yield "forecast", f"{_way(plan)}; `fits` leaves room for {plan.doubt:g} times the forecast"
        yield "peak", _peak(plan)
        if plan.beyond:
            asked = (f"{one.name} {one.value} ({one.at})" for one in plan.beyond)
            yield "not in the plan", ", ".join(asked)
        if not plan.activations_known:
            yield "not included", "activations (set --activations)"
        elif plan.way == "fake tensors":
            fusion = ", fusion by torch.compile" if plan.without_compile is None else ""
            yield "not included", f"workspaces of cuDNN, sums of reductions{fusion}"


def _gpus(parallel: ModelParallel) -> str:
    experts = f", all its experts on {parallel.gpus * parallel.expert}"
    return counted(parallel.gpus, "GPU") + (experts if parallel.expert > 1 else "")


def _checkpointed(which: str) -> str:
    """Return what is checkpointed, after a comma; empty: nothing."""
    kind, _, policy = which.partition(":")
    if kind == "none":
        return ""
    if kind == "every":
        return ", each block checkpointed"
    if not policy:
        return ", checkpointed, with all matrix products kept"
    if policy == "op":
        return ", checkpointed, with every second matrix product kept"
    return f", 1 of {policy} blocks checkpointed" if policy != "1" else ", each block checkpointed"


def _most(plan: Plan) -> str:
    """Return how many samples also fit, after a semicolon."""
    if plan.largest_micro_batch is None or plan.micro_batch is None:
        return ""
    if plan.largest_micro_batch <= plan.micro_batch:
        return f"; {counted(plan.micro_batch, 'sample')} at a time at most"
    return f"; up to {plan.largest_micro_batch} samples fit at a time"


def _way(plan: Plan) -> str:
    if plan.way == "closed form":
        why = f": {plan.coarse}" if plan.coarse else ""
        return f"coarse, by closed form{why}"
    row = plan.rows[plan.chosen or 0]
    expands = " with expandable segments" if plan.expandable else ""
    return (
        "by one step on fake tensors, with attention, dropout, autocast and optimizer as on "
        f"CUDA, and by the rules of torch's allocator{expands}; the peak is in the {row.moment}"
    )


def _peak(plan: Plan) -> str:
    """Return the forecast peak and its range, of the chosen row or of the smallest one."""
    least = min(plan.rows, key=lambda row: row.parts.total)
    parts = (least if plan.chosen is None else plan.rows[plan.chosen]).parts
    # What vLLM takes, no tensor of the training has.
    beside = parts.context + (0 if plan.cache else parts.generation)
    held = parts.total - beside
    reserved = f", {gib(held)} reserved by torch's allocator" if parts.unused else ""
    return (
        f"{gib(parts.used - beside)} GiB allocated by tensors{reserved}, "
        f"{gib(parts.total)} to {gib(round(plan.doubt * parts.total))} in nvidia-smi, which "
        f"includes CUDA{', vLLM' if beside > parts.context else ''} and NCCL"
    )


def _step(plan: Plan, row: PlanRow) -> Iterator[tuple[str, str]]:
    if plan.measured:
        yield "measured", f"{plan.measured}; no bundle records how long its samples were"
    step = row.step
    if step is not None:
        about = "" if step.source == "as measured" else "about "
        share = (
            "" if step.share_of_peak is None else f", at {step.share_of_peak:.0%} of the GPU's peak"
        )
        told = f"{about}{three(step.seconds)} s {step.source}{share}"
        yield "step", ": ".join(filter(None, (told, ", ".join(_rates(plan, row, step)))))
    if plan.with_tf32 is not None:
        yield (
            "with TF32",
            f"about {three(plan.with_tf32.seconds)} s: torch.set_float32_matmul_precision('high')",
        )
    if plan.with_float8 is not None:
        yield (
            "with float8",
            f"about {three(plan.with_float8.seconds)} s, with as much memory: "
            "torchao.float8.convert_to_float8_training(model), then torch.compile",
        )
    if plan.links:
        yield "links", plan.links


def _rates(plan: Plan, row: PlanRow, step: StepTime) -> Iterator[str]:
    if plan.micro_batch is not None:
        yield f"{three(plan.samples_per_second(row))} samples/s"
    if step.efficiency is not None:
        yield f"efficiency {step.efficiency:.0%}"
    if step.bubble:
        yield f"{three(step.bubble)} s of it in the pipeline's bubble"
    if step.loading:
        yield f"{three(step.loading)} s of it waiting for data"


def _settings(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the options of the fastest configuration, and what it was compared with."""
    best = plan.advised
    if best is None:
        return
    options = {
        "gpus": best.gpus,
        "micro-batch": best.micro_batch,
        "global-batch": best.global_batch,
        "checkpointing": best.checkpointing,
    }
    words = " ".join(f"--{name} {value}" for name, value in options.items())
    words += " --compile" if plan.without_compile is not None else ""
    yield "settings", f"{words}, {counted(best.accumulation, 'accumulation step')}"
    at = (
        f"at a global batch of {plan.global_batch}"
        if plan.global_batch
        else "each micro-batch at its own global batch (set --global-batch to compare at one)"
    )
    yield "search", f"micro-batch, accumulation, checkpointing and strategy, {at}"


def _schedule(plan: Plan) -> Iterator[tuple[str, str]]:
    one = plan.schedule
    if one is None or plan.chosen is None:
        return
    row = plan.rows[plan.chosen]
    turns = f" × {row.accumulation} accumulation steps" if row.accumulation > 1 else ""
    ranks = row.parallel.of(row.copies) if row.parallel.gpus > 1 else ""
    yield (
        "batch",
        f"{one.global_batch} samples: {plan.micro_batch} on each of "
        f"{ranks or counted(row.gpus, 'GPU')}{turns}",
    )
    yield "steps", f"{one.steps_per_epoch:,} per epoch, {one.steps:,} in total{_time(one)}"


def _time(one: Schedule) -> str:
    if one.seconds is None:
        return ""
    about = "" if one.source in (None, "as measured") else "about "
    source = "" if one.source is None else f" {one.source}"
    if one.seconds > LONGEST_SECONDS:
        return f", {about}more than a thousand years{source}"
    return f", {about}{timedelta(seconds=round(one.seconds))}{source}"


def three(value: float | None) -> str:
    """Return the value with three significant digits."""
    if value is None:
        return UNKNOWN
    decimals = 2 - floor(log10(value)) if value > 0 else 0
    return f"{value:,.{min(max(0, decimals), MOST_DECIMALS)}f}"


def gib(size: int) -> str:
    """Return bytes in GiB."""
    found = size / GIB
    return f"{found:.0f}" if abs(found) >= 1000 else f"{found:.1f}"
