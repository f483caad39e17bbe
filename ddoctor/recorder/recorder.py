"""All parts of the recorder, assembled once torch is loaded."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch.optim.optimizer import Optimizer

from ddoctor.evidence.loading import CurvePoint, LoopTurns
from ddoctor.recorder import (
    caches,
    calls,
    facts,
    hooks,
    isolation,
    loader_facts,
    loop_turns,
    module_hooks,
    recorded,
    trial,
    user_calls,
)
from ddoctor.recorder.capture import capturing
from ddoctor.recorder.collectives import CollectiveWatch
from ddoctor.recorder.device_clock import DeviceClock
from ddoctor.recorder.frameworks import Frameworks
from ddoctor.recorder.gradients import Gradients
from ddoctor.recorder.inspection import Inspection
from ddoctor.recorder.learning_rates import LearningRates
from ddoctor.recorder.loaders import Loaders
from ddoctor.recorder.optimizer_gradients import OptimizerGradients
from ddoctor.recorder.outermost import Outermost
from ddoctor.recorder.overwritten import Overwritten
from ddoctor.recorder.recorded import NO_GROWTH, Facts
from ddoctor.recorder.remade import Remade
from ddoctor.recorder.repeats import Repeats
from ddoctor.recorder.replicas import Replicas
from ddoctor.recorder.sampler import Sampler
from ddoctor.recorder.state_dicts import StateDicts
from ddoctor.recorder.stepping import NEVER, Stepping
from ddoctor.recorder.tape import COUNT, ERROR, LEAVING, LOADER, Tape
from ddoctor.recorder.timeline import Timeline
from ddoctor.recorder.untrained import Untrained

if TYPE_CHECKING:
    from ddoctor.recorder.growth import BatchGrowth

# A loader that takes less of the step than this is not tried alone.
NOTABLE_LOADER = 0.05
RECENT_STEPS = 64
# The parameters of a run that goes on are summed after so many steps, and eight times as many.
FIRST_SUMMED, SUMMED_AGAIN = 100, 8
SETTLED_STEPS = 8
BACKWARDS = COUNT["backwards"]
GATHERS = {"all_gather_into_tensor", "all_gather_single"}
"""How FSDP gathers parameters, until torch 2.13 and since."""
PACED_STEPS = 4
# Of a healthy loop a few tensors with a graph remain between two steps.
MANY_GRAPHS = 5
"""By then the optimizers have their states, and the models are found."""


def _cuda_clock(timeline: Timeline) -> DeviceClock:
    new: Any = torch.cuda.Event

    def idle() -> bool:
        return torch.cuda.current_stream().query()

    return DeviceClock(timeline.memory, lambda: new(enable_timing=True), capturing, idle)


class Recorder:
    """Watches one training script from inside."""

    def __init__(self, folder: Path, timeline: Timeline, *, isolate: bool) -> None:
        self._folder = folder
        self._timeline = timeline
        self._isolate = isolate
        self._stepping = Stepping(timeline)
        self._outermost = Outermost(timeline)
        self._collectives = CollectiveWatch(timeline)
        self._frameworks = Frameworks()
        self._gradients = Gradients(timeline)
        self._gradients.at_first.append(self._frameworks.look)
        self._gradients.at_end.append(self._stepping.passed)
        self._loaders = Loaders(timeline, self._outermost.training)
        self._loaders.at_epoch.append(self._frameworks.look)
        self._inspection = Inspection(timeline)
        self._optimizer_gradients = OptimizerGradients(self._stepping)
        self._untrained = Untrained(self._outermost, self._stepping)
        self._repeats = Repeats(timeline)
        self._remade = Remade(self._stepping)
        self._replicas = Replicas()
        self._rates = LearningRates(timeline, self._stepping)
        self._overwritten = Overwritten(timeline, self._outermost)
        self._state_dicts = StateDicts()
        self._sampler = Sampler(timeline, self.write)
        self._sampler.workers_free = self._loaders.malloc_free
        self._growth: BatchGrowth | None = None
        self._curve: tuple[CurvePoint, ...] = ()
        self._memory = NO_GROWTH
        self._caches: caches.Sizes = {}
        self._hooks: Counter[CodeType] | None = None
        self._checksums: Mapping[int, facts.Checksum] = {}
        self._turns: tuple[LoopTurns, ...] = ()
        self._sum_at = FIRST_SUMMED
        self._logged: Mapping[int, Mapping[str, Any]] = {}
        self._log_at = 1
        self._writing = Lock()

    def install(self) -> None:
        """Hook into torch, before the script runs."""
        trial.apply()
        self._stepping.install()
        self._gradients.install()
        self._collectives.install()
        self._loaders.install()
        self._state_dicts.install()
        calls.install(self._timeline)
        hooks.install(self._timeline)
        self._stepping.at_first.append(self._replicas.note)
        self._stepping.at_optimizer += self._at_optimizer, self._optimizer_gradients.follow
        self._stepping.at_passes.append(self._at_optimizer)
        self._stepping.between_steps(
            *(self._settle, self._inspection.step, self._sum_up, self._optimizer_gradients.look),
            *(self._untrained.look, self._repeats.look, self._remade.look, self._rates.look),
            *(self._overwritten.look, self._log),
        )
        self._stepping.at_stop.append(self._at_stop)
        self._sampler.trains = self._trains
        self._sampler.start()
        if request := os.environ.get(recorded.GROW):
            from ddoctor.recorder.growth import BatchGrowth

            self._growth = BatchGrowth(self._folder, request, self._stepping, self._outermost)
            self._growth.install()

    def watch_functional(self, functional: ModuleType) -> None:
        """Time functional collectives, once the module with them is there."""
        self._collectives.install_functional(functional)

    def expected(self, error: BaseException) -> bool:
        """Whether a trial of ddoctor ended the script."""
        return self._growth is not None and self._growth.expected(error)

    def _trains(self) -> bool:
        """Whether a backward pass has begun, or FSDP has gathered parameters for a forward pass."""
        if self._timeline.done or self._timeline.counts[BACKWARDS]:
            return True
        return any(operation in GATHERS for operation, _ in list(self._collectives.places))

    def _at_optimizer(self, optimizer: Optimizer | None = None) -> None:
        self._outermost.find(optimizer)
        self._take_models()
        if facts.device(self._outermost).startswith("cuda") and self._timeline.device is None:
            self._timeline.use_device(_cuda_clock(self._timeline))
            calls.time_copies(self._timeline)
            self._sampler.device_memory = lambda: torch.cuda.memory_allocated() / 2**20

    def _take_models(self) -> None:
        self._gradients.wrapped = self._outermost.wrapped()
        self._inspection.watch([*self._gradients.wrapped, *facts.plain_models(self._outermost)])
        self._stepping.call_all()

    def _settle(self, number: int) -> int:
        if number > SETTLED_STEPS:
            return NEVER
        self._frameworks.look()
        if number == 1:
            tensors, depth = facts.graphs()
            self._memory = replace(
                self._memory, graph_tensors_before=tensors, graph_depth_before=depth
            )
            self._caches = caches.sizes()
            self._hooks = module_hooks.counted()
        if number == PACED_STEPS:
            between = facts.between_steps(self._outermost)
            self._memory = replace(self._memory, device_between=between)
        if self._outermost.settle(number):
            self._take_models()
        return number + 1

    def _sum_up(self, number: int) -> int:
        """A run that is not stopped may change its parameters when its steps are over."""
        # At the same steps on all ranks.
        if number == self._sum_at:
            self._checksums = facts.checksums(self._outermost, self._replicas) or {}
            self._sum_at *= SUMMED_AGAIN
        return self._sum_at

    def _log(self, number: int) -> int:
        """What DDP logs, often at first: in a run that hangs, nothing may ask it."""
        if number >= self._log_at:
            self._logged = facts.logged(self._outermost)
            self._log_at = 2 * number
        return self._log_at

    def _at_stop(self) -> None:
        self._turns = loop_turns.turns() or ()
        self._logged = facts.logged(self._outermost)
        self._checksums = facts.checksums(self._outermost, self._replicas) or {}
        self._inspection.end()
        gc.collect()
        tensors, depth = facts.graphs()
        self._memory = replace(
            self._memory,
            graph_tensors=tensors,
            graph_depth=depth,
            caches=caches.grown(self._caches),
            hooks=module_hooks.added(self._hooks) if self._hooks is not None else None,
        )
        grown = tensors - (self._memory.graph_tensors_before or 0)
        if max(grown, depth - (self._memory.graph_depth_before or 0)) >= MANY_GRAPHS:
            ways = (self._outermost.calls, *self._sampler.ways())
            self._memory = replace(self._memory, keeps=user_calls.storing(ways))
        self.write()
        if self._isolate:
            with suppress(Exception):
                # What the user's dataset raises here says nothing of the training.
                self._curve = tuple(self._isolated())

    def _isolated(self) -> list[CurvePoint]:
        """The loaders that delay the training, measured in isolation."""
        tape = Tape(self._folder / recorded.TAPE)
        rows = list(tape.rows())[-RECENT_STEPS:]
        tape.close()
        whole = sum(row.end - row.begin for row in rows)
        loading = sum(row.phases[LOADER] for row in rows)
        if not whole or loading < NOTABLE_LOADER * whole:
            return []
        self._loaders.closed = True
        points: list[CurvePoint] = []
        rest = [row.end - row.begin - row.phases[LOADER] for row in rows]
        for loader, seen in list(self._loaders.seen.items()):
            if seen.waits:
                need = facts.worker_need(list(seen.waits)[-RECENT_STEPS:], rest)
                known = next(loader_facts.loading([seen])).loader
                points += isolation.curve(loader, seen.name, known.batch_seconds or need, need)
        return points

    def end(self) -> None:
        """End the recording, and write all of it."""
        self._sampler.stop()
        self._logged = facts.logged(self._outermost)
        self.write()
        if self._timeline.head[LEAVING]:
            self._loaders.end_workers()

    def write(self) -> None:
        """Write everything recorded so far."""
        # From the thread that samples, and from the main thread at the end.
        with self._writing:
            self._timeline.head[ERROR] = recorded.write(
                self._folder,
                recorded.FACTS,
                Facts(
                    wrappers=tuple(
                        facts.wrappers(
                            self._outermost,
                            self._inspection,
                            self._checksums,
                            self._untrained,
                            self._logged,
                        )
                    ),
                    loaders=tuple(loader_facts.loading(list(self._loaders.begun))),
                    calls=tuple(self._collectives.places.values()),
                    inputs=facts.inputs(self._outermost),
                    turns=self._turns,
                    flags=facts.flags(
                        self._outermost,
                        self._timeline.autocast,
                        self._gradients.graph,
                        self._optimizer_gradients,
                        self._repeats,
                        self._remade,
                        self._rates,
                        self._overwritten,
                        self._state_dicts,
                    ),
                    places=self._sampler.places(),
                    samples=tuple(self._sampler.samples),
                    memory=tuple(self._sampler.memory),
                    script_threads=self._sampler.threads.seen(),
                    grown=self._sampler.grown,
                    growth=facts.with_device(self._memory),
                    fsdp="torch.distributed.fsdp" in sys.modules,
                    threads=torch.get_num_threads(),
                    gc_enabled=gc.isenabled(),
                    optimizers=tuple(name for name, _ in self._stepping.classes.most_common()),
                    framework=self._frameworks.used,
                    device=facts.device(self._outermost),
                    curve=self._curve,
                ),
            )
