"""The measured step of a run or memory sweep, and the step times of other rows derived from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import GPUS_PER_HOST, TITLES, StepTime, Strategy
from ddoctor.forecast import exchange
from ddoctor.forecast.closed_form import ForecastRow, Model
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.exchange import PlannedLinks
from ddoctor.forecast.options import Precision

# The value of --params is rounded.
ALIKE = 0.05


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """One optimizer step; times in seconds."""

    strategy: Strategy | None
    """How the model was distributed; None: not known."""
    gpus: int
    hosts: int
    turns: int = 1
    """Micro-batches per optimizer step."""
    micro_batch: int | None
    """Samples per GPU and micro-batch; None: not recorded."""
    each: float
    """Seconds that a GPU computes per micro-batch."""
    loading: float | None = None
    """Seconds of waiting for data per micro-batch; None: no data was loaded."""
    optimizer: float = 0.0
    transfer: float | None
    """Seconds of exposed communication; None: part of the computing time."""
    parameters: float | None = None
    """Number of the model's parameters; None: not recorded."""
    links: PlannedLinks
    precision: Precision | None = None
    """The precision; None: not recorded."""
    states: str | None = None
    """The optimizer by its states; None: not recorded, or not known."""

    @property
    def words(self) -> str:
        """Return a description of the measured step."""
        how = TITLES[self.strategy] if self.strategy else "a differently distributed model"
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
        # Its ranks were on as few hosts as in a plan.
        as_measured = same and self.hosts == ceil(self.gpus / GPUS_PER_HOST)
        exposed = self.transfer if as_measured else self._exposed(model, device, row)
        if exposed is None and not as_measured:
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

    def _exposed(self, model: Model, device: PlannedGpu, row: ForecastRow) -> float | None:
        times = exchange.times(row.strategy, row.accumulation)
        hosts, seen = ceil(row.gpus / GPUS_PER_HOST), 0.0
        alike = row.strategy == self.strategy and self.gpus > 1 and hosts >= self.hosts
        if self.transfer is not None and alike:
            # As much as goes through each rank of a ring; over slower links it is not less.
            of_each = ((row.gpus - 1) / row.gpus) / ((self.gpus - 1) / self.gpus)
            seen = self.transfer * of_each * times / exchange.times(row.strategy, self.turns)
            if hosts == self.hosts == 1:
                return seen
        links = self.linked(device)
        each = links.exposed(model, row.strategy, row.gpus, self.each)
        updating = links.updating(model, row.strategy, row.gpus)
        return None if each is None or updating is None else max(seen, times * each + updating)
