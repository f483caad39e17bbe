"""Plans the fastest configuration of a training, chosen by a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Candidate, Plan
from ddoctor.forecast import planning, timing
from ddoctor.forecast.closed_form import Model
from ddoctor.forecast.config_files import Taken
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.search import Search, row

if TYPE_CHECKING:
    from ddoctor.forecast.model.forecasting import Forecast

SEARCHED = ("micro_batch", "checkpointing")
"""The options that the search chooses, unless the command line gives them."""


def opened(own: PlanRequest, wanted: PlanRequest, taken: Taken) -> tuple[PlanRequest, Taken]:
    """Return the options with those open that the search chooses, though a file gives them.

    Raises:
        DoctorError: an option excludes the search, or one that it needs is missing.
    """
    if wanted.model is None and wanted.workload is None:
        raise DoctorError(
            "--advise goes with --model or --workload: it forecasts steps of several micro-batches"
        )
    if wanted.measured or wanted.step is not None:
        raise DoctorError(
            "--advise goes without --measured and --step: they time a single configuration"
        )
    if wanted.parallel.words:
        raise DoctorError("--advise does not search --tp, --pp, --cp and --ep: leave them out")
    if wanted.engine == "deepspeed":
        raise DoctorError("--advise compares DDP and FSDP: pass --engine fsdp")
    if wanted.lengths is not None:
        raise DoctorError("--advise times samples of one length: pass --sequence, not --lengths")
    if wanted.method is not None and wanted.method.generates and wanted.vllm_share is None:
        raise DoctorError("--advise times no generation by transformers: pass --vllm-share")
    if wanted.gpu is None:
        raise DoctorError("--advise needs --gpu: step times follow from its rates")
    given = {name: getattr(own, name) for name in SEARCHED}
    left = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is None]
    settings = tuple(one for one in taken.settings if one.name not in left)
    return replace(wanted, **given), replace(taken, settings=settings)


def plan(
    model: Model,
    device: PlannedGpu,
    gpus: Sequence[int],
    work: PlanRequest,
    forecast: Forecast | None,
) -> Plan:
    """Return the plan of the fastest configuration that fits; if none does, of the smallest.

    Raises:
        DoctorError: its steps cannot be forecast, or the global batch suits no number of GPUs.
    """
    if forecast is None:
        raise DoctorError(f"--advise needs a step on fake tensors: {model.coarse}")
    if timing.roofline(model, device) is None:
        raise DoctorError(
            f"--advise compares step times, and no table has the rates of {device.name}"
        )
    search = Search(model=model, device=device, work=work, forecast=forecast)
    numbers = [number for number in sorted(set(gpus)) if search.micro_batches(number)]
    if not numbers:
        each = "" if work.micro_batch is None else f"{work.micro_batch} samples on "
        raise DoctorError(
            f"a global batch of {work.global_batch} is not a multiple of {each}"
            f"{' or '.join(map(str, gpus))} GPUs: change --global-batch or --gpus"
        )
    found = [one for number in numbers for one in search.frontier(number)]
    if not found:
        least = search.smallest
        work = search.work_of(least)
        return planning.plan(search.timed(least), device, numbers, work, None, least)
    best = max(found, key=lambda one: one.samples_per_second)
    chosen = search.of(best.checkpointing, best.micro_batch)
    planned = planning.plan(
        search.timed(chosen),
        device,
        (best.gpus,),
        search.work_of(chosen),
        forecast=chosen,
        only=row(best),
    )
    return msgspec.structs.replace(
        planned,
        candidates=tuple(found),
        global_batch=work.global_batch,
        reason=_reason(best, device),
    )


def _reason(best: Candidate, device: PlannedGpu) -> str:
    free, whole = (size / planning.GIB for size in (device.memory - best.memory, device.memory))
    return f"the fastest that fits; {free:.1f} of {whole:.1f} GiB stay free"
