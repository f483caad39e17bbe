"""The step of a run, or of a sweep of micro-batches, and what it tells of other rows of a plan."""

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

# What --params says is rounded.
ALIKE = 0.05
SHARDED: dict[str, Strategy] = {
    "all": "fsdp",
    "gradients": "fsdp-gradients",
    "within-hosts": "fsdp-hybrid",
}


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """One step of the optimizer, in seconds."""

    strategy: Strategy | None
    """None: it is not known how the model was spread."""
    gpus: int
    hosts: int
    turns: int
    """Micro-batches."""
    micro_batch: int | None
    """None: not recorded."""
    each: float
    """What a GPU computes in a micro-batch."""
    loading: float | None
    """The wait for the data of a micro-batch; None: nothing was loaded."""
    optimizer: float
    transfer: float | None
    """Communication that no computing hid; None: it is within the computing."""
    parameters: float | None
    """Of the model; None: not recorded."""
    links: PlannedLinks
    precision: Precision | None = None
    """None: not recorded."""
    states: Optimizer | None = None
    """The optimizer, by what it keeps; None: not recorded, or not known."""

    @property
    def words(self) -> str:
        """Of what it is the step, for people."""
        how = TITLES[self.strategy] if self.strategy is not None else "a model spread otherwise"
        ranks = "1 rank" if self.gpus == 1 else f"{self.gpus} ranks"
        turns = "" if self.turns == 1 else f" × {self.turns}"
        samples = "" if self.micro_batch is None else f", {self.micro_batch} samples each{turns}"
        loaded = "" if self.loading is not None else ", nothing loaded"
        each = self.each + (self.loading or 0.0)
        seconds = self.turns * each + self.optimizer + (self.transfer or 0.0)
        return f"{seconds:.3g} s: {how}, {ranks}{samples}{loaded}"

    def check(self, model: Model) -> None:
        """Whether it is the model of the plan, as far as its size tells.

        Raises:
            DoctorError: it is another one.
        """
        told = self.parameters
        if told is not None and abs(told - model.parameters) > ALIKE * model.parameters:
            raise DoctorError(
                f"--measured: that was a model of {told / 1e6:,.1f}M parameters, and the plan is "
                f"for one of {model.parameters / 1e6:,.1f}M: measure the one that is planned"
            )
        if self.precision not in (None, model.precision):
            raise DoctorError(
                f"--measured: that was in {self.precision}, and the plan is for {model.precision}: "
                f"say --precision {self.precision}, or measure the other"
            )

    def step(self, model: Model, device: PlannedGpu, row: ForecastRow) -> StepTime | None:
        """Of another row, or of the same; None: a link is not known."""
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
            # What the ranks wait for the slowest among them is in it.
            compute=row.accumulation * self.each + self.optimizer,
            exposed=exposed,
            loading=row.accumulation * (self.loading or 0.0),
        )

    def linked(self, device: PlannedGpu) -> PlannedLinks:
        """The links as they were measured, else as they are known."""
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
            # As much as goes through each of so many; over slower links it is not less.
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
    """Of the bytes that a collective moves, what goes through each rank of a ring."""
    return (ranks - 1) / ranks


def device(paths: Sequence[Path]) -> PlannedGpu:
    """The GPU that it was measured on, with the memory that a sweep found there.

    Raises:
        DoctorError: it was measured on none.
    """
    evidence = bundles.read_all(list(paths))
    names = [one.device_name for use in evidence.all(RankUse) for one in use.flags]
    for sweep in evidence.all(MemoryHeadroom):
        names += [one.place.device_name for one in sweep.ranks]
    model = knowledge.load(GpuModels).find(names[0]) if len(set(names)) == 1 else None
    for sweep in evidence.all(MemoryHeadroom):
        limit = sweep.tightest.limit
        # On a GPU the limit is the allocator's, beside CUDA's context.
        memory = limit if sweep.played else limit + CONTEXT
        return PlannedGpu(name=f"the sweep's {names[0] or 'device'}", memory=memory, model=model)
    if model is None:
        raise DoctorError(
            "say what GPU it is for: --gpu h100-80, or --device-memory: "
            f"{' and '.join(map(str, paths))} is of none that is known"
        )
    return find(model.name)


def read(paths: Sequence[Path], device: PlannedGpu, micro_batch: int | None) -> MeasuredStep:
    """The step in bundles of a run or a sweep, for so many samples at a time if that is said.

    Raises:
        DoctorError: there is none, or it is of another GPU, or of other samples.
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
        f"{name} has steps of {sizes} samples at a time: say --micro-batch {sizes}, or measure "
        f"{wanted}"
    )


def _demand(name: str, device: PlannedGpu, places: Sequence[RankPlace]) -> None:
    """What one GPU took tells nothing of another."""
    if device.model is None:
        return
    known = knowledge.load(GpuModels)
    for place in places:
        if known.find(place.device_name) != device.model:
            raise DoctorError(
                f"{name} was measured on {place.device_name or 'CPUs'}, and the plan is for "
                f"{device.name}: measure there, or give the memory of what it ran on with "
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
        # FSDP1 tells of its shards only.
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
        f"{name} holds no steps: let `ddoctor run --bundle PATH train.py` record some, or "
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
    """As often in the median step of the first rank; 0: not counted."""
    found = counts(steps.ranks[0])
    return round(median(found)) if found else 0
