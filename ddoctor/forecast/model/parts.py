"""The forecast of one GPU's part of a model under model parallelism."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import ModelParallel
from ddoctor.forecast.closed_form import COMPUTING, Model
from ddoctor.forecast.model.blueprint import Blueprint
from ddoctor.forecast.model.forecasting import Forecast
from ddoctor.forecast.model.part import dimensions, part_of
from ddoctor.forecast.model.pipeline import PipelineForecast
from ddoctor.forecast.model.stages import Stage


def divided(
    blueprint: Blueprint, whole: Forecast, parallel: ModelParallel
) -> tuple[Model, Forecast | PipelineForecast]:
    """Return one GPU's part in numbers, and its forecast; ``whole``: that of the whole model.

    Raises:
        DoctorError: the model cannot be divided like this.
    """
    sizes = dimensions(blueprint)
    sizes.check(parallel)
    each = parallel.tensor * parallel.context
    if whole.length % each:
        raise DoctorError(
            f"--sequence {whole.length}: --tp and --cp divide it, so pass a multiple of {each}"
        )
    tokens = whole.samples * whole.length
    # Keys and values of the whole sequence, and their gradients until they are scattered.
    keys = 4 * tokens * sizes.key_heads * sizes.head * COMPUTING[whole.precision] // parallel.tensor

    def of(stage: Stage | None) -> tuple[Model, Forecast]:
        own = part_of(blueprint, parallel, stage)
        model = own.read(whole.precision, whole.optimizer)
        with_all = part_of(blueprint, msgspec.structs.replace(parallel, expert=1), stage)
        every = with_all.read(whole.precision, whole.optimizer)
        forecast = replace(
            whole,
            blueprint=own,
            fills=stage == "first",
            context=parallel.context,
            keys=keys if parallel.context > 1 else 0,
            fewer=model.parameters / every.parameters,
        )
        return model, forecast

    found: Forecast | PipelineForecast
    if parallel.pipeline > 1:
        (first, of_first), (last, of_last) = of("first"), of("last")
        model = max(first, last, key=lambda one: one.parameters)
        found = PipelineForecast(first=of_first, last=of_last)
    else:
        model, found = of(None)
    traffic = sizes.traffic(parallel, tokens, whole.precision, whole.checkpointing)
    return replace(model, work=found.work, traffic=traffic), found
