"""Reads the bundles of a run or memory sweep: its GPU, its step, and its model in numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

from ddoctor import knowledge
from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle as bundles
from ddoctor.evidence.known_hardware import GpuModels
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.evidence.plan import Strategy
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import RankSteps, Steps
from ddoctor.evidence.training import RankUse, TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.forecast import devices, exchange
from ddoctor.forecast.closed_form import CONTEXT, USUAL_LAYERS, Model
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.measured import MeasuredStep
from ddoctor.forecast.options import PlanRequest, Precision

# Dtypes of parameters and of autocast, as torch names them.
PRECISIONS: Mapping[tuple[str, str], Precision] = {
    ("float32", ""): "fp32",
    ("float32", "bfloat16"): "bf16-mixed",
    ("float32", "float16"): "fp16-mixed",
    ("bfloat16", ""): "bf16",
    ("bfloat16", "bfloat16"): "bf16",
}
OPTIMIZERS: Mapping[str, str] = {
    "Adam": "adamw",
    "AdamW": "adamw",
    "Adam8bit": "adamw-8bit",
    "AdamW8bit": "adamw-8bit",
    "SGD": "sgd",
    "Adafactor": "adafactor",
}
SHARDED: Mapping[str, Strategy] = {
    "all": "fsdp",
    "gradients": "fsdp-gradients",
    "within-hosts": "fsdp-hybrid",
}

Kind = TypeVar("Kind", Precision, str)


class RunBundle:
    """The bundles of a run, memory sweep or probe."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._name = " and ".join(map(str, paths))
        self._evidence = evidence = bundles.read_all(list(paths))
        self._sweeps = evidence.all(MemoryHeadroom)
        self._flags = [one for section in evidence.all(RankUse) for one in section.flags]
        found = [one for section in evidence.all(Wrapping) for one in section.wrappers]
        self._wrappers = [one for one in found if one.rank == found[0].rank]
        """Of the first rank."""
        # FSDP1 reports only its shards.
        self._sharded = any(one.kind == "fsdp1" for one in self._wrappers)
        dtypes = {(one.parameter_dtype, one.autocast) for one in self._flags}
        self._precision = PRECISIONS.get(dtypes.pop()) if len(dtypes) == 1 else None
        names = {OPTIMIZERS.get(one) for run in evidence.all(TrainingRun) for one in run.optimizers}
        self._optimizer = names.pop() if len(names) == 1 else None

    def device(self) -> PlannedGpu:
        """Return the measured GPU, with the memory that a sweep found there.

        Raises:
            DoctorError: it was measured without a GPU.
        """
        names = [one.device_name for one in self._flags]
        names += [one.place.device_name for sweep in self._sweeps for one in sweep.ranks]
        model = knowledge.load(GpuModels).find(names[0]) if len(set(names)) == 1 else None
        for sweep in self._sweeps:
            limit = sweep.tightest.limit
            # On a GPU, the limit is the allocator's, without the CUDA context.
            memory = limit if sweep.played else limit + CONTEXT
            name = f"the sweep's {names[0] or 'device'}"
            return PlannedGpu(name=name, memory=memory, model=model)
        if model is None:
            raise DoctorError(
                f"{self._name} names no known GPU: pass --gpu h100-80 or --device-memory"
            )
        return devices.find(model.name)

    def model(self, wanted: PlanRequest) -> Model:
        """Return the model, with the given options; activations if `run --memory` measured them.

        Raises:
            DoctorError: there is no model in it, or one that cannot be planned from numbers.
        """
        own = self._wrappers
        if not own or self._sharded:
            why = "FSDP1 reports only its shards" if own else "it has no model"
            raise DoctorError(
                f"{self._name}: {why}: describe the model with --model CONFIG, --workload "
                "package.module:factory, or --params 4.4B"
            )
        parameters = sum(one.parameters for one in own)
        trained = sum(one.trainable_bytes for one in own) / sum(one.parameter_bytes for one in own)
        largest = max(own, key=lambda one: one.parameters)
        repeats = largest.blocks is not None and largest.blocks > 1
        sweeps = [
            (one.tightest.per_sample, wanted.micro_batch or one.current) for one in self._sweeps
        ]
        activations = (each * samples for each, samples in sweeps if each and samples)
        return Model(
            name=" and ".join(dict.fromkeys(one.name for one in own)),
            parameters=parameters,
            trainable=parameters * trained,
            precision=self._demanded(wanted.precision or self._precision, "precision"),
            optimizer=self._demanded(wanted.optimizer or self._optimizer, "optimizer"),
            activations=wanted.activations or next(activations, 0),
            layers=wanted.layers or (repeats and largest.blocks) or USUAL_LAYERS,
            blocks=(largest.block,) if repeats else (),
        )

    def step(self, device: PlannedGpu, micro_batch: int | None) -> MeasuredStep:
        """Return the measured step, for this micro-batch if it is not None.

        Raises:
            DoctorError: there is no step, or it has another GPU or another micro-batch.
        """
        steps = next((one for one in self._evidence.all(Steps) if one.count), None)
        if steps is None:
            return self._of_sweep(device, micro_batch)
        self._check_gpu(device, [rank.place for rank in steps.ranks])
        found = self._of_run(steps)
        if micro_batch is not None and found.micro_batch not in (None, micro_batch):
            raise self._other_samples(str(found.micro_batch), micro_batch)
        return found

    def _of_run(self, steps: Steps) -> MeasuredStep:
        ranks, own = len(steps.ranks), self._wrappers
        turns = _median(steps, lambda rank: rank.backwards) or 1
        samples = _median(steps, lambda rank: rank.samples)
        calls = _median(steps, lambda rank: rank.forwards)
        transfer = 0.0 if ranks == 1 else None
        if ranks > 1 and all("transfer" in rank.by_name for rank in steps.ranks):
            transfer = _typical(steps, "transfer")
        loading, optimizer = _typical(steps, "loader"), _typical(steps, "optimizer")
        whole = median(map(fmean, zip(*(rank.seconds for rank in steps.ranks), strict=False)))
        strategy: Strategy | None = "one-gpu"
        if ranks > 1:
            strategy = next((SHARDED[one.sharding] for one in own if one.sharding), None)
            strategy = "ddp" if any(one.kind == "ddp" for one in own) else strategy
        return MeasuredStep(
            strategy=strategy,
            gpus=ranks,
            hosts=len({rank.place.host for rank in steps.ranks}),
            turns=turns,
            micro_batch=samples // calls if samples and calls and samples % calls == 0 else None,
            each=max(0.0, whole - loading - optimizer - (transfer or 0.0)) / turns,
            loading=loading / turns,
            optimizer=optimizer,
            transfer=transfer,
            parameters=None if self._sharded else sum(one.parameters for one in own) or None,
            links=exchange.measured(self._evidence),
            precision=self._precision,
            states=self._optimizer,
        )

    def _of_sweep(self, device: PlannedGpu, micro_batch: int | None) -> MeasuredStep:
        sweep = next((one for one in self._sweeps if one.rates), None)
        if sweep is None:
            raise DoctorError(
                f"{self._name} has no steps: record some with `ddoctor run --bundle PATH train.py` "
                "or `torchrun … -m ddoctor.probe memory_headroom --workload … --bundle PATH`"
            )
        self._check_gpu(device, [rank.place for rank in sweep.ranks])
        rates = {rate.micro_batch: rate for rate in sweep.rates}
        if micro_batch is not None and micro_batch not in rates:
            raise self._other_samples(" or ".join(map(str, sorted(rates))), micro_batch)
        current = sweep.current if sweep.current in rates else None
        chosen = rates[micro_batch or current or max(rates)]
        ranks = len(sweep.ranks)
        return MeasuredStep(
            strategy="one-gpu" if ranks == 1 else "fsdp" if sweep.sharded else "ddp",
            gpus=ranks,
            hosts=len({rank.place.host for rank in sweep.ranks}),
            micro_batch=chosen.micro_batch,
            each=chosen.seconds,
            transfer=None if ranks > 1 else 0.0,
            links=exchange.measured(self._evidence),
        )

    def _other_samples(self, sizes: str, wanted: int) -> DoctorError:
        return DoctorError(
            f"{self._name} has micro-batches of {sizes} samples: pass --micro-batch {sizes}, or "
            f"measure {wanted}"
        )

    def _check_gpu(self, device: PlannedGpu, places: Sequence[RankPlace]) -> None:
        """Check the GPU model: the time of one GPU model says nothing about another."""
        if device.model is None:
            return
        known = knowledge.load(GpuModels)
        for place in places:
            if known.find(place.device_name) != device.model:
                raise DoctorError(
                    f"{self._name} was measured on {place.device_name or 'CPUs'}, and the plan is "
                    f"for {device.name}: measure there, or pass the memory of the measured device "
                    "with --device-memory"
                )

    def _demanded(self, found: Kind | None, option: str) -> Kind:
        if found is None:
            raise DoctorError(f"{self._name} does not record the {option}: pass --{option}")
        return found


def _typical(steps: Steps, phase: str) -> float:
    return fmean(rank.typical(phase) for rank in steps.ranks)


def _median(steps: Steps, counts: Callable[[RankSteps], Sequence[int]]) -> int:
    """Return the count in the median step of the first rank; 0: not counted."""
    found = counts(steps.ranks[0])
    return round(median(found)) if found else 0
