"""Which parameters get a local gradient on this rank, inspected in a few steps only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from math import ceil, inf
from time import perf_counter
from typing import Any

from torch import Tensor, nn, strided
from torch.nn.parallel import DistributedDataParallel

from ddoctor.recorder.discarded import Discarded
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.tape import COUNT
from ddoctor.recorder.timeline import IN_A_ROW, Timeline

FIRST_STEPS = 3
# Of the time of all steps; what the hooks cost is measured at the first inspection.
AFFORDABLE = 0.001
FEWEST_BETWEEN = 4
DEFAULT_BETWEEN = 32
BACKWARDS = COUNT["backwards"]


class Inspection:
    """Hooks on all parameters of the models, in DDP or not, one step at a time."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._handles: list[Any] = []
        self._got: set[int] = set()
        self._under_way: list[int] = []
        self._names: dict[int, tuple[int, str]] = {}
        self._used: Counter[int] = Counter()
        self._hooked: Counter[int] = Counter()
        self._tables: list[list[Tensor]] = []
        self._rows: dict[int, float] = {}
        """Of each embedding table, the share of rows with a gradient; 1: not known."""
        self._discarded = Discarded(timeline, self._turn)
        self.steps = 0
        self._next = 0
        self._settled = inf
        """The step by which each gradient of the first ones is taken or zeroed."""
        self._began = 0.0
        self._last_step = 0.0

    def watch(self, models: list[nn.Module]) -> None:
        """Inspect these models from the next step on; earlier results are dropped."""
        self.end()
        self._used.clear()
        self._hooked.clear()
        self._discarded = Discarded(self._timeline, self._turn)
        self.steps = 0
        bare = [one.module if isinstance(one, DistributedDataParallel) else one for one in models]
        for number, model in enumerate(bare):
            for name, one in model.named_parameters():
                if one.requires_grad:
                    self._names[id(one)] = (number, name)
        self._models = models
        self._tables = [_tables(model) for model in bare]
        self._rows = {id(one): 1.0 for tables in self._tables for one in tables}
        self._next = self._timeline.done + 1

    _models: list[nn.Module] = []  # noqa: RUF012 - replaced, never added to

    def step(self, number: int) -> int:
        """Between two steps: read the results of the last one, prepare the next. Returns the step
        of the next call."""
        if self._handles:
            self._end()
            if self.steps < FIRST_STEPS:
                self._next = number
            else:
                seconds = max(self._timeline.last - self._last_step, 1e-6)
                between = ceil(self._cost / (AFFORDABLE * seconds))
                # By powers of two, so that all ranks inspect the same steps.
                power = 1 << max(0, between - 1).bit_length()
                self._next = number + max(FEWEST_BETWEEN, power, DEFAULT_BETWEEN)
                if self.steps == FIRST_STEPS:
                    self._settled = number + FEWEST_BETWEEN
        if number >= self._settled:
            self._discarded.remove()
            self._settled = inf
        timeline = self._timeline
        if timeline.busy != timeline.main:
            return number + IN_A_ROW
        if self._models and number >= self._next:
            self._begin()
            self._last_step = timeline.last
        due = min(self._next, self._settled)
        return number + 1 if self._handles else max(int(due), number + 1)

    def end(self) -> None:
        """Remove the hooks; an unfinished step does not count."""
        self._unhook()
        self._discarded.remove()

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def number(self, model: nn.Module) -> int | None:
        """The number by which the other functions know a model; None: it is not inspected."""
        return next((number for number, one in enumerate(self._models) if one is model), None)

    def unused(self, model: int, updated: Set[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Parameters of a model that never got a gradient, and those that sometimes did.

        ``updated``: those that were updated, in steps that were not inspected.
        """
        never, sometimes = list[str](), list[str]()
        for one, (of, name) in self._names.items():
            used = self._used[one]
            if of == model and used < self._hooked[one]:
                (sometimes if used or one in updated else never).append(name)
        return tuple(never), tuple(sometimes)

    def tables(self, model: int | None) -> list[Tensor]:
        """Embedding tables of a model whose gradients are dense, and that no other layer shares."""
        return [] if model is None or model >= len(self._tables) else self._tables[model]

    def table_rows(self, model: int | None) -> float:
        """The share of their rows with a gradient, 0 to 1, weighted by bytes; 1: not known."""
        tables = self.tables(model)
        whole = sum(one.nbytes for one in tables)
        if not whole:
            return 1.0
        return sum(one.nbytes * self._rows.get(id(one), 1.0) for one in tables) / whole

    def discarded(self, model: int) -> float:
        """The share of backward passes, 0 to 1, after the last gradient that an optimizer takes,
        for gradients of this model."""
        return self._discarded.share(lambda one: self._names[one][0] == model)

    _cost = 0.0

    def _begin(self) -> None:
        began = perf_counter()
        self._got.clear()
        self._under_way.clear()
        came = self._came
        for model in self._models:
            parameters: Iterator[Any] = model.parameters()
            # One that a script freezes and thaws in each step may be frozen now, and be used later.
            thawed = [one for one in parameters if one.requires_grad and id(one) in self._names]
            self._handles += [one.register_post_accumulate_grad_hook(came) for one in thawed]
            self._under_way += map(id, thawed)
        self._timeline.counts[COUNT["inspected"]] = 1
        if self._in_a_row:
            self._discarded.begin()
        # Registering, calling and removing them cost about the same.
        self._cost = 3 * (perf_counter() - began)

    def _end(self) -> None:
        self._unhook()
        self.steps += 1
        self._used.update(self._got)
        self._hooked.update(self._under_way)

    @property
    def _in_a_row(self) -> bool:
        """Whether it is one of the first steps, all of which are inspected."""
        return self.steps < FIRST_STEPS

    def _came(self, parameter: Tensor) -> None:
        self._got.add(id(parameter))
        if self._in_a_row:
            self._discarded.came(id(parameter))
            if id(parameter) in self._rows:
                self._look_at(parameter)

    @harmless
    def _look_at(self, table: Tensor) -> None:
        if self.steps == 0 and table.grad is not None and table.grad.layout is strided:
            used = (table.grad != 0).any(1)
            self._rows[id(table)] = float(used.float().mean())

    def _turn(self) -> object:
        return self._timeline.done, self._timeline.counts[BACKWARDS]


def _tables(module: nn.Module) -> list[Tensor]:
    owned = Counter(id(one) for part in module.modules() for one in part._parameters.values())
    tables = (
        one.weight
        for one in module.modules()
        if isinstance(one, nn.Embedding | nn.EmbeddingBag) and not one.sparse
    )
    return [one for one in tables if one.requires_grad and owned[id(one)] == 1]
