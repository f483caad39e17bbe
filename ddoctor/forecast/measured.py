"""The measured step of a run or memory sweep, and the step times of other rows derived from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean, median

from ddoctor import knowledge
from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle as bundles
from ddoctor.evidence.known_hardware import GpuModels
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.evidence.plan import GPUS_PER_HOST, TITLES, StepTime, Strategy
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import RankSteps, Steps
from ddoctor.evidence.training import RankUse
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.forecast import exchange, from_run
from ddoctor.forecast.closed_form import CONTEXT, Model, Optimizer, Precision
from ddoctor.forecast.devices import PlannedGpu, find
from ddoctor.forecast.exchange import PlannedLinks
from ddoctor.forecast.forecaster import ForecastRow

# The value of --params is rounded.
ALIKE = 0.05
SHARDED: dict[str, Strategy] = {
    "all": "fsdp",
    "gradients": "fsdp-gradients",
    "within-hosts": "fsdp-hybrid",
}


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """One optimizer step; times in seconds."""

    strategy: Strategy | None
    """How the model was distributed; None: not known."""
    gpus: int
    hosts: int
    turns: int
    """Micro-batches per optimizer step."""
    micro_batch: int | None
    """Samples per GPU and micro-batch; None: not recorded."""
    each: float
    """Seconds that a GPU computes per micro-batch."""
    loading: float | None
    """Seconds of waiting for data per micro-batch; None: no data was loaded."""
    optimizer: float
    transfer: float | None
    """Seconds of exposed communication; None: part of the computing time."""
    parameters: float | None
    """Number of the model's parameters; None: not recorded."""
    links: PlannedLinks
    precision: Precision | None = None
    """The precision; None: not recorded."""
    states: Optimizer | None = None
    """The optimizer by its states; None: not recorded, or not known."""

    @property
    def words(self) -> str:
        """Return a description of the measured step."""
        how = (
            TITLES[self.strategy]
            if self.strategy is not None
            else "a differently distributed model"
        )
        ranks = "1 rank" if self.gpus == 1 else f"{self.gpus} ranks"
        turns = "" if self.turns == 1 else f" × {self.turns}"
        samples = "" if self.micro_batch is None else f", {self.micro_batch} samples each{turns}"
        loaded = "" if self.loading is not None else ", no data loaded"
        each = self.each + (self.loading or 0.0)
        seconds = self.turns * each + self.optimizer + (self.transfer or 0.0)
        return f"{seconds:.3g} s: {how}, {ranks}{samples}{loaded}"

    def check(self, model: Model) -> None:
        """Check that the model has the same size and precision as the plan's.

        Raises:
            DoctorError: it is another model.
        """
        told = self.parameters
        if told is not None and abs(told - model.parameters) > ALIKE * model.parameters:
            raise DoctorError(
                f"--measured: the run had a model of {told / 1e6:,.1f}M parameters, the plan "
                f"is for one of {model.parameters / 1e6:,.1f}M: measure the planned model"
            )
        if self.precision not in (None, model.precision):
            raise DoctorError(
                f"--measured: the run was in {self.precision}, the plan is for {model.precision}: "
                f"pass --precision {self.precision}, or measure a run in {model.precision}"
            )

    def step(self, model: Model, device: PlannedGpu, row: ForecastRow) -> StepTime | None:
        """Return the step time of a row; None: a link is not known."""
        mine = self.strategy, self.gpus, self.turns
        same = (row.strategy, row.gpus, row.accumulation) == mine
        as_measured = same and self._usual_hosts
        exposed = self.transfer
        if not as_measured:
            exposed = self._exposed(model, device, row)
            if exposed is None:
                return None
        return StepTime(
            source="as measured" if as_measured else "by the measured step",
            # It includes the wait for the slowest rank.
            compute=row.accumulation * self.each + self.optimizer,
            exposed=exposed,
            loading=row.accumulation * (self.loading or 0.0),
        )

    def linked(self, device: PlannedGpu) -> PlannedLinks:
        """Return the measured links, else those of the tables."""
        known = exchange.known(device.model) if device.model is not None else PlannedLinks()
        return PlannedLinks(
            within=self.links.within or known.within, between=self.links.between or known.between
        )

    @property
    def _usual_hosts(self) -> bool:
        """Whether its ranks were on as few hosts as in a plan."""
        return self.hosts == ceil(self.gpus / GPUS_PER_HOST)

    def _exposed(self, model: Model, device: PlannedGpu, row: ForecastRow) -> float | None:
        times, hosts = exchange.times(row), ceil(row.gpus / GPUS_PER_HOST)
        seen = 0.0
        alike = row.strategy == self.strategy and self.gpus > 1 and hosts >= self.hosts
        if self.transfer is not None and alike:
            # As much as goes through each rank; over slower links it is not less.
            of_each = _share(row.gpus) / _share(self.gpus)
            seen = (
                self.transfer
                * of_each
                * times
                / exchange.times(replace(row, accumulation=self.turns))
            )
            if hosts == self.hosts == 1:
                return seen
        each = self.linked(device).exposed(model, row.strategy, row.gpus, self.each)
        return None if each is None else max(seen, times * each)


def _share(ranks: int) -> float:
    """Return the share of a collective's bytes that goes through each rank of a ring."""
    return (ranks - 1) / ranks


def device(paths: Sequence[Path]) -> PlannedGpu:
    """Return the measured GPU, with the memory that a sweep found there.

    Raises:
        DoctorError: it was measured without a GPU.
    """
    evidence = bundles.read_all(list(paths))
    names = [one.device_name for use in evidence.all(RankUse) for one in use.flags]
    for sweep in evidence.all(MemoryHeadroom):
        names += [one.place.device_name for one in sweep.ranks]
    model = knowledge.load(GpuModels).find(names[0]) if len(set(names)) == 1 else None
    for sweep in evidence.all(MemoryHeadroom):
        limit = sweep.tightest.limit
        # On a GPU, the limit is the allocator's, without the CUDA context.
        memory = limit if sweep.played else limit + CONTEXT
        return PlannedGpu(name=f"the sweep's {names[0] or 'device'}", memory=memory, model=model)
    if model is None:
        raise DoctorError(
            f"{' and '.join(map(str, paths))} names no known GPU: "
            "pass --gpu h100-80 or --device-memory"
        )
    return find(model.name)


def read(paths: Sequence[Path], device: PlannedGpu, micro_batch: int | None) -> MeasuredStep:
    """Return the step in bundles of a run or sweep, for this micro-batch if it is not None.

    Raises:
        DoctorError: there is no step, or it has another GPU or another micro-batch.
    """
    name = " and ".join(map(str, paths))
    evidence = bundles.read_all(list(paths))
    links = exchange.measured(evidence)
    for steps in evidence.all(Steps):
        if steps.count:
            _demand(name, device, [rank.place for rank in steps.ranks])
            found = _of_a_run(steps, evidence, links)
            break
    else:
        found = _of_a_sweep(name, device, evidence, micro_batch, links)
    if micro_batch is not None and found.micro_batch not in (None, micro_batch):
        raise _other_samples(name, str(found.micro_batch), micro_batch)
    return found


def _other_samples(name: str, sizes: str, wanted: int) -> DoctorError:
    return DoctorError(
        f"{name} has micro-batches of {sizes} samples: pass --micro-batch {sizes}, or measure "
        f"{wanted}"
    )


def _demand(name: str, device: PlannedGpu, places: Sequence[RankPlace]) -> None:
    """Check the GPU model: the time of one GPU model says nothing about another."""
    if device.model is None:
        return
    known = knowledge.load(GpuModels)
    for place in places:
        if known.find(place.device_name) != device.model:
            raise DoctorError(
                f"{name} was measured on {place.device_name or 'CPUs'}, and the plan is for "
                f"{device.name}: measure there, or pass the memory of the measured device with "
                "--device-memory"
            )


def _of_a_run(steps: Steps, evidence: Evidence, links: PlannedLinks) -> MeasuredStep:
    wrappers = [one for section in evidence.all(Wrapping) for one in section.wrappers]
    own = [one for one in wrappers if one.rank == steps.ranks[0].place.rank]
    turns = _whole(steps, lambda rank: rank.backwards) or 1
    samples, calls = (
        _whole(steps, lambda rank: rank.samples),
        _whole(steps, lambda rank: rank.forwards),
    )
    seen = len(steps.ranks) > 1 and all("transfer" in rank.by_name for rank in steps.ranks)
    alone = 0.0 if len(steps.ranks) == 1 else None
    transfer = _typical(steps, "transfer") if seen else alone
    loading, optimizer = _typical(steps, "loader"), _typical(steps, "optimizer")
    whole = median(map(fmean, zip(*(rank.seconds for rank in steps.ranks), strict=False)))
    return MeasuredStep(
        strategy=_strategy(len(steps.ranks), own),
        gpus=len(steps.ranks),
        hosts=len({rank.place.host for rank in steps.ranks}),
        turns=turns,
        micro_batch=samples // calls if samples and calls and samples % calls == 0 else None,
        each=max(0.0, whole - loading - optimizer - (transfer or 0.0)) / turns,
        loading=loading / turns,
        optimizer=optimizer,
        transfer=transfer,
        # FSDP1 reports only its shards.
        parameters=sum(one.parameters for one in own)
        if own and all(one.kind != "fsdp1" for one in own)
        else None,
        links=links,
        precision=from_run.precision_of(evidence),
        states=from_run.optimizer_of(evidence),
    )


def _of_a_sweep(
    name: str, device: PlannedGpu, evidence: Evidence, micro_batch: int | None, links: PlannedLinks
) -> MeasuredStep:
    for sweep in evidence.all(MemoryHeadroom):
        rates = {rate.micro_batch: rate for rate in sweep.rates}
        if not rates:
            continue
        _demand(name, device, [rank.place for rank in sweep.ranks])
        if micro_batch is not None and micro_batch not in rates:
            raise _other_samples(name, " or ".join(map(str, sorted(rates))), micro_batch)
        current = sweep.current if sweep.current in rates else None
        chosen = rates[micro_batch or current or max(rates)]
        ranks = len(sweep.ranks)
        return MeasuredStep(
            strategy="one-gpu" if ranks == 1 else "fsdp" if sweep.sharded else "ddp",
            gpus=ranks,
            hosts=len({rank.place.host for rank in sweep.ranks}),
            turns=1,
            micro_batch=chosen.micro_batch,
            each=chosen.seconds,
            loading=None,
            optimizer=0.0,
            transfer=None if ranks > 1 else 0.0,
            parameters=None,
            links=links,
        )
    raise DoctorError(
        f"{name} has no steps: record some with `ddoctor run --bundle PATH train.py` or "
        "`torchrun … -m ddoctor.probe memory_headroom --workload … --bundle PATH`"
    )


def _strategy(ranks: int, wrappers: Sequence[Wrapper]) -> Strategy | None:
    if ranks == 1:
        return "one-gpu"
    if any(one.kind == "ddp" for one in wrappers):
        return "ddp"
    return next((SHARDED[one.sharding] for one in wrappers if one.sharding), None)


def _typical(steps: Steps, phase: str) -> float:
    return fmean(rank.typical(phase) for rank in steps.ranks)


def _whole(steps: Steps, counts: Callable[[RankSteps], Sequence[int]]) -> int:
    """Return the count in the median step of the first rank; 0: not counted."""
    found = counts(steps.ranks[0])
    return round(median(found)) if found else 0
