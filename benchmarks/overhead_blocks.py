"""Blocks of steps without the recorder and with it, in turns, in one training.

Whole runs of the same script differ by more than recording costs; neighbouring blocks do not. What
the recorder put into torch is taken out for every other block and put back for the next. A block of
short steps is as long as it takes until recording and resting come round again.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch  # noqa: TID253
import torch.distributed as dist  # noqa: TID253
from torch.nn.parallel import DistributedDataParallel  # noqa: TID253
from torch.optim import optimizer as optimizers  # noqa: TID253
from torch.utils.data import DataLoader, dataloader  # noqa: TID253
from torch.utils.data._utils import fetch  # noqa: TID253

from benchmarks.overhead_script import WARM_UPS, Training
from ddoctor.recorder import recorded
from ddoctor.recorder.recorder import Recorder
from ddoctor.recorder.sampler import Sampler
from ddoctor.recorder.tape import Tape
from ddoctor.recorder.timeline import EVERY, Timeline

OWNERS: Sequence[Any] = (
    torch,
    torch.autograd,
    torch.cuda,
    torch.amp.GradScaler,
    torch.nn.Sequential,
    dist,
    dist.distributed_c10d,
    gc,
    DistributedDataParallel,
    DataLoader,
    dataloader._BaseDataLoaderIter,
    dataloader._MultiProcessingDataLoaderIter,
    fetch._MapDatasetFetcher,
    fetch._IterableDatasetFetcher,
)
HOOKS: Sequence[Any] = (
    optimizers._global_optimizer_pre_hooks,
    optimizers._global_optimizer_post_hooks,
)
RECORDER = Path(recorded.__file__).parent
ABSENT = object()
# Steps right after a switch are left out: what Python has learnt about the classes is void then,
# and what was put in place lies in no cache of the CPU's. A run without the recorder has neither,
# one with it has both wherever the recorder wakes up.
SETTLING = 5
MODES = BARE, RECORDED = ("bare", "recorded")


class Switch:
    """Everything that the recorder put in place: there, or not there."""

    def __init__(self) -> None:
        self._before = [dict(vars(owner)) for owner in OWNERS]
        self._callbacks = list(gc.callbacks)

    def found(self) -> None:
        """The recorder is in place: keep what is different now."""
        self._changed = [
            (owner, name, before.get(name, ABSENT), value)
            for owner, before in zip(OWNERS, self._before, strict=True)
            for name, value in vars(owner).items()
            if before.get(name, ABSENT) is not value and _of_recorder(value)
        ]
        self._hooks = [dict(hooks) for hooks in HOOKS]
        self._collecting = list(gc.callbacks)

    def put(self, on: bool) -> None:
        """Put all of it in place, or take it out."""
        for owner, name, before, after in self._changed:
            if on or before is not ABSENT:
                setattr(owner, name, after if on else before)
            elif name in vars(owner):
                delattr(owner, name)
        for hooks, kept in zip(HOOKS, self._hooks, strict=True):
            hooks.clear()
            hooks.update(kept if on else {})
        gc.callbacks[:] = self._collecting if on else self._callbacks


def _of_recorder(value: Any) -> bool:
    """Not what torch itself has loaded meanwhile."""
    code = getattr(value, "__code__", None)
    return code is not None and Path(code.co_filename).parent == RECORDER


def _nothing() -> None:
    pass


def main() -> None:
    """Write the seconds of a step in the blocks of each turn, one mode after the other; then those
    that the main thread was on a CPU."""
    width, steps, turns, result = *map(int, sys.argv[1:4]), Path(sys.argv[4])
    dist.init_process_group("gloo")
    with TemporaryDirectory() as folder:
        timeline = Timeline(Tape(Path(folder) / recorded.TAPE, create=True))
        switch = Switch()
        recorder = Recorder(Path(folder), timeline, isolate=False)
        recorder.install()
        training = Training(width)
        training.train(WARM_UPS)
        recorder.end()
        training.train(-timeline.done % EVERY)
        switch.found()
        lines = []
        sampler = Sampler(timeline, recorder.write)
        looks = {"_look": sampler._look, "_weigh": sampler._weigh}
        sampler.start()
        for turn in range(turns):
            seconds, on_cpu = {}, {}
            for mode in MODES[:: 1 if turn % 2 else -1]:
                switch.put(mode == RECORDED)
                for name, look in looks.items():
                    setattr(sampler, name, _nothing if mode == BARE else look)
                if mode == BARE or steps % EVERY:
                    training.train(SETTLING)
                if mode == RECORDED and timeline._row_began is not None:
                    # The bare steps between are none of the row.
                    timeline._row_began = time.perf_counter()
                before = timeline.done
                dist.barrier()
                began, cpu = time.perf_counter(), time.thread_time()
                training.train(steps)
                seconds[mode] = (time.perf_counter() - began) / steps
                on_cpu[mode] = (time.thread_time() - cpu) / steps
                if timeline.done - before != (0 if mode == BARE else steps):
                    raise SystemExit(f"{timeline.done - before} steps were recorded in a block")
            cells = (of[mode] for of in (seconds, on_cpu) for mode in MODES)
            lines.append(" ".join(map(str, cells)))
        sampler.stop()
        if dist.get_rank() == 0:
            result.write_text("\n".join(lines))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
