"""Every row of the table of frames is met in a real process of the torch that is installed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ddoctor import knowledge
from ddoctor.analysis.loop_lines import COLLECTS
from ddoctor.analysis.loop_work import BACKWARD
from ddoctor.analysis.stack_activities import RECOMPUTES, activity
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import Activity, FrameRow, KnownFrames
from ddoctor.live.activities import MOST_ACTIVITIES, activities
from ddoctor.live.process_snapshots import snapshot
from ddoctor.live.sampling_rate import RATE
from ddoctor.live.source import Source
from ddoctor.live.spy import Spy
from tests.training_run import ALL_REDUCE, ENGINE, library, user

SECONDS = 15
HERE = Source(psutil.Process())
# One after the other, again and again, so that the samples meet each of them.
ALL = """
import importlib, logging, os, sys, time
import accelerate, numpy
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoints
from torch.distributed.pipelining import schedules
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from safetensors.torch import save_file

torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
large = torch.zeros(2_000_000)
accelerator = accelerate.Accelerator(cpu=True)
accelerator.prepare(nn.Linear(2000, 1000))


class Slow(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.05)
        return index


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(0.1)
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("statistics", torch.zeros(8_000_000))

    def forward(self, value):
        time.sleep(0.05)
        return (self.weight * value).sum()


def begin():
    iter(DataLoader(Slow(), num_workers=2))


def importing():
    sys.modules.pop("slow_module", None)
    importlib.import_module("slow_module")


def compiling():
    torch._dynamo.reset()
    torch.compile(lambda value: value + 1, backend="eager")(large[:2])


def evaluate():
    time.sleep(0.1)


class Far(logging.Handler):
    def emit(self, record):
        time.sleep(0.1)


logging.getLogger().addHandler(Far())
compiling()  # the first time imports much
with open("slow_module.py", "w") as file:
    file.write("import time; time.sleep(0.2)")
sys.path.insert(0, os.getcwd())
sys.dont_write_bytecode = True
matrix = torch.ones(700, 700, requires_grad=True)
adam = torch.optim.Adam([nn.Parameter(large.clone())], foreach=False)
adam.param_groups[0]["params"][0].grad = large
model = Model()
wrapped = DistributedDataParallel(model)
here, workers = iter(DataLoader(Slow())), iter(DataLoader(Slow(), num_workers=1))
done = [
    lambda: torch.save(large, "weights.pt"),
    lambda: checkpoints.save({"weights": large}, checkpoint_id="folder"),
    lambda: dist.all_reduce(large),
    lambda: functional.wait_tensor(functional.all_reduce(large, "sum", dist.group.WORLD)),
    lambda: schedules._wait_batch_p2p([dist.all_reduce(large, async_op=True)]),
    lambda: next(here),
    lambda: next(workers),
    begin,
    lambda: (matrix @ matrix @ matrix).sum().backward(),
    lambda: Backward.apply(matrix).sum().backward(),
    adam.step,
    lambda: model(large[:2]),
    wrapped._sync_buffers,
    importing,
    compiling,
    evaluate,
    lambda: logging.error("lost"),
    lambda: save_file({"weights": large}, "weights.safetensors"),
    lambda: numpy.savez("weights.npz", large.numpy()),
    lambda: accelerator.save_state("state"),
]
print("ready", flush=True)
while True:
    for one in done:
        end = time.monotonic() + 0.25
        while time.monotonic() < end:
            one()
"""
COLLECTING = """
kept = []
for _ in range(600_000):
    kept.append([kept])
print("ready", flush=True)
while True:
    kept.append([kept])
"""
ALONE = """
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print("ready", flush=True)
dist.init_process_group("gloo", store=store, rank=0, world_size=2)
"""
TABLE: KnownFrames = knowledge.load(KnownFrames)


def _of(row: FrameRow, stack: tuple[Frame, ...]) -> bool:
    return any(
        frame.file.endswith(row.file) and frame.function.rpartition(".")[2] in row.functions
        for frame in stack
    )


def _met(
    script: str, seconds: int, folder: Path, *, native: bool = False
) -> list[tuple[Frame, ...]]:
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            source = Source(psutil.Process(process.pid))
            spy = Spy(process.pid, source, seconds, rate=RATE, native=native)
            time.sleep(seconds)
            spy.end()
            stacks, why = spy.stacks()
        finally:
            process.kill()
    assert not why
    return list(stacks.main[process.pid])


@pytest.mark.ward
def test_each_row_is_met(tmp_path: Path) -> None:
    stacks = [
        *_met(ALL, SECONDS, tmp_path),
        *_met(ALONE, 2, tmp_path),
        *_met(COLLECTING, 3, tmp_path, native=True),
    ]
    assert [row for row in TABLE.frame if not any(_of(row, one) for one in stacks)] == []
    assert {row.activity for row in TABLE.frame} == {activity(one) for one in stacks} - {"rest"}


SAVE = library("torch/serialization.py", 970, "save")
OPTIMIZER = library("torch/optim/optimizer.py", 501, "Optimizer.profile_hook_step.<locals>.wrapper")
CLOSURE = library("lightning/pytorch/loops/optimization/closure.py", 146, "Closure.closure")
WRAP_CLOSURE = library(
    "lightning/pytorch/plugins/precision/precision.py", 106, "Precision._wrap_closure"
)
APPLY = library("torch/autograd/function.py", 315, "BackwardCFunction.apply")
CALL = library("torch/nn/modules/module.py", 1787, "Module._call_impl")


@pytest.mark.parametrize(
    ("stack", "told"),
    [
        ((user(3), CALL, user(9)), "forward"),
        ((user(3), SAVE, ALL_REDUCE), "checkpoint"),
        ((user(3), CALL, ALL_REDUCE), "collective"),
        ((user(3), ENGINE), "backward-or-wait"),
        # Python runs within it: a hook, or a function of the user's own with a gradient.
        ((user(3), ENGINE, user(9)), "hooks"),
        ((user(3), ENGINE, user(9), user(2)), "hooks"),
        ((user(3), ENGINE, user(9), ALL_REDUCE), "collective"),
        ((user(3), ENGINE, APPLY, user(9)), "backward"),
        ((user(3), ENGINE, user(9), OPTIMIZER), "optimizer"),
        ((user(3), user(9)), "rest"),
        # A trainer's closure, in which it runs its passes and callbacks.
        ((user(3), OPTIMIZER, CLOSURE, library("trainer.py", 9, "call"), user(9)), "rest"),
        ((user(3), OPTIMIZER, CLOSURE, CALL, user(9)), "forward"),
        ((user(3), OPTIMIZER, WRAP_CLOSURE, library("call.py", 9, "call"), user(9)), "rest"),
        ((user(3), OPTIMIZER, library("sgd.py", 8, "step")), "optimizer"),
        ((user(3), OPTIMIZER, CLOSURE), "optimizer"),
        # Native code that nobody has frames of; and what has.
        ((user(3), user(9, "handle.wait()")), "collective"),
        ((user(3), user(9, "dist.all_reduce(x, async_op=True).wait()")), "collective"),
        ((user(3), user(9, 'store.wait(["ready"])')), "rest"),
        ((user(3), user(9, 'self.TCPStore.wait(["ready"])')), "rest"),
        ((user(9, "ready.wait()"), library("threading.py", 629, "Event.wait")), "rest"),
        ((), "rest"),
        # A function of the same name in a file of the user's.
        ((user(3, function="all_reduce"),), "rest"),
    ],
)
def test_the_first_row_tells(stack: tuple[Frame, ...], told: str) -> None:
    assert activity(stack) == told


def read(text: str, *inner: Frame) -> tuple[Frame, ...]:
    return (user(3), user(9, text), *inner)


SYNCHRONIZE = library("torch/cuda/__init__.py", 1108, "synchronize")


@pytest.mark.parametrize(
    ("stack", "told"),
    [
        (read("total += loss.item()"), "gpu-wait"),
        (read("torch.cuda.synchronize()", SYNCHRONIZE), "gpu-wait"),
        (read("images = images.to(device, non_blocking=True)"), "to-device"),
        (read("batch = batch.cuda()"), "to-device"),
        # In code that computes; beside the GPU; in the model.
        (read("x = x.cpu().numpy()", library("numpy/linalg/_linalg.py", 3, "svd")), "rest"),
        (read("draw(losses)"), "rest"),
        ((user(3), CALL, user(9, "scale = weight.max().item()")), "forward"),
    ],
)
def test_beside_the_table_the_users_line_tells_where_there_is_a_gpu(
    stack: tuple[Frame, ...], told: str
) -> None:
    assert activity(stack, on_gpu=True) == told
    assert activity(stack) == ("forward" if told == "forward" else "rest")


def test_the_most_frequent_comes_first_with_the_users_lines() -> None:
    forward, backward = (user(3), CALL, user(9), CALL), (user(4), ENGINE)
    first, second = activities([forward, backward, forward], HERE)
    assert (first.name, first.samples, first.calls) == ("forward", 2, (user(3), user(9)))
    assert (second.name, second.samples, second.calls) == ("backward-or-wait", 1, (user(4),))
    assert (first.line, second.line) == (user(9), user(4))


def test_the_same_line_on_two_ways() -> None:
    helper = user(9, function="busy")
    met = activities([(user(3), helper), (user(5), helper), (user(3), helper)], HERE)
    assert [(one.calls[0], one.samples) for one in met] == [(user(3), 2), (user(5), 1)]


def test_how_often_each_is_come_to() -> None:
    forward, elsewhere, backward = (user(3), CALL), (user(5), CALL), (user(4), ENGINE)
    met = activities([forward, elsewhere, backward, forward, forward], HERE)
    assert {(one.name, one.visits) for one in met} == {("forward", 2), ("backward-or-wait", 1)}


def test_how_often_each_frame_is_come_to() -> None:
    step, draws = (user(3), user(4), CALL), (user(3), user(5, function="draw"))
    within = (*draws, user(6, function="draw"))
    met = activities([step, draws, within, step, step, within, within], HERE)
    times = {one.calls: one.times for one in met}
    assert times == {(user(3), user(4)): (1, 2), draws: (1, 2), within: (1, 2, 2)}


def test_the_frames_that_lead_into_an_activity_are_counted() -> None:
    stacks = [(user(3), user(4), CALL, user(9)), (user(3), user(9)), (user(3), user(5), SAVE)]
    found = {one.name: one.entered for one in activities(stacks, HERE)}
    assert found == {"forward": 2, "rest": 2, "checkpoint": 2}


def test_rare_lines_of_an_activity_are_merged() -> None:
    often = [(user(3), user(4), CALL)] * 50
    rare = [(user(3), user(10), user(line)) for line in range(40)]
    found = activities([*often, *rare], HERE)
    assert sum(one.samples for one in found if one.name == "rest") == 40
    assert len(found) <= MOST_ACTIVITIES + 1
    (merged,) = (one for one in found if one.name == "rest" and one.samples > 1)
    assert merged.calls == (user(3), user(10))
    assert merged.entered == 2


def test_what_a_loader_of_this_process_calls() -> None:
    taken = library("torch/utils/data/dataloader.py", 741, "_BaseDataLoaderIter.__next__")
    fetch = library("torch/utils/data/_utils/fetch.py", 54, "_MapDatasetFetcher.fetch")
    item, collate = user(9, function="Items.__getitem__"), library("collate.py", 5, "stack")
    stacks = [(user(3), taken, fetch, item)] * 3 + [(user(3), taken, fetch, collate)] * 2
    drawn = library("torch/utils/data/dataloader.py", 692, "_BaseDataLoaderIter._next_index")
    stacks += [(user(3), taken, drawn, user(9, function="Priorities.__iter__"))] * 4
    found = activities([*stacks, (user(3), taken)], HERE)
    assert [(one.name, one.makes) for one in found] == [
        ("loader", "_next_index"),
        ("loader", "__getitem__"),
        ("loader", "stack"),
        ("loader", ""),
    ]


HOOKED = """
import sys, time
import torch
from torch import nn
def busy():
    until = time.perf_counter() + 0.02
    while time.perf_counter() < until:
        pass
def see(module, args, output):
    busy()
def change(module, args, output):
    busy()
    return 2 * output
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
model[0].register_forward_hook({hook})
print("ready", flush=True)
while True:
    model(torch.ones(8, 4)).sum().backward()
"""


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ("see", "hooks"),
        pytest.param("lambda *of_it: see(*of_it)", "hooks", marks=pytest.mark.ward),
        ("change", "forward"),
    ],
)
def test_a_hook_of_a_module(tmp_path: Path, hook: str, told: str) -> None:
    assert _sampled(HOOKED.format(hook=hook), tmp_path)[0].name == told


TRACED = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(30))
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x
torch.set_num_threads(1)
model = Model()
torch.autograd.set_detect_anomaly({anomaly}, check_nan=False)
def within(calls):  # a traceback takes as long as there are calls to write
    return within(calls - 1) if calls else model(torch.ones(8, 4))
print("ready", flush=True)
while True:
    within(40).sum().backward()
"""


@pytest.mark.ward
@pytest.mark.parametrize("anomaly", [True, False])
def test_operations_that_keep_their_traceback(tmp_path: Path, anomaly: bool) -> None:
    met = _sampled(TRACED.format(anomaly=anomaly), tmp_path, seconds=6)
    found = sum(one.samples for one in met if one.makes == "format_stack")
    assert (found > 0.1 * sum(one.samples for one in met)) is anomaly


@pytest.mark.parametrize(
    ("line", "made"),
    [("x = torch.tanh(layer(x))", "format_stack"), ("seen = traceback.format_stack()", "")],
)
def test_a_traceback_that_the_user_asks_for_is_none_of_an_operation(line: str, made: str) -> None:
    call = library("torch/nn/modules/module.py", 1775, "Module._call_impl")
    keeps = library("traceback.py", 227, "format_stack")
    (met,) = activities([(user(20), call, user(14, line, "forward"), keeps)], HERE)
    assert (met.name, met.makes) == ("forward", made)


CHECKPOINTED = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)
        )
    def forward(self, x):
        for block in self.blocks:
            x = {call}
        return x
torch.set_num_threads(1)
model = Model()
x = torch.ones(512, 256, requires_grad=True)
print("ready", flush=True)
while True:
    model(x).sum().backward()
"""


@pytest.mark.parametrize(
    ("call", "least", "most"),
    [
        ("checkpoint(block, x, use_reentrant=False)", 0.1, 0.5),
        # Its own backward pass begins within that of the checkpoint, and is not counted.
        pytest.param("checkpoint(block, x, use_reentrant=True)", 0.1, 0.5, marks=pytest.mark.ward),
        pytest.param("block(x)", 0.0, 0.0, marks=pytest.mark.ward),
    ],
)
def test_what_a_backward_pass_computes_again(
    tmp_path: Path, call: str, least: float, most: float
) -> None:
    met = _sampled(CHECKPOINTED.format(call=call), tmp_path, seconds=4)
    found = [one for one in met if one.makes == RECOMPUTES]
    share = sum(one.samples for one in found) / sum(one.samples for one in met)
    assert least <= share <= most
    assert {one.name for one in found} <= {BACKWARD}


RELEASED = """
import sys
sys.path.insert(0, "packages/site-packages")
import helper
heap = [[number] for number in range(1_000_000)]
print("ready", flush=True)
while True:
    helper.release()
"""


def test_a_function_of_a_library_that_collects_garbage(tmp_path: Path) -> None:
    package = tmp_path / "packages" / "site-packages"
    package.mkdir(parents=True)
    (package / "helper.py").write_text("import gc\ndef release():\n    gc.collect()\n")
    met = _sampled(RELEASED, tmp_path, seconds=4)
    made = sum(one.samples for one in met if one.makes == COLLECTS)
    assert made > 0.5 * sum(one.samples for one in met)


def _sampled(source: str, folder: Path, seconds: int = 2) -> tuple[Activity, ...]:
    """What some seconds of a script show, from where it prints that it is ready."""
    script = folder / "train.py"
    script.write_text(source)
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            lines = Source(psutil.Process(process.pid))
            # Of a stack that changes all the time, few samples can be read, or none.
            for _ in range(5):
                spy = Spy(process.pid, lines, seconds, rate=RATE)
                time.sleep(seconds)
                spy.end()
                stacks, why = spy.stacks()
                if main := stacks.main.get(process.pid):
                    return activities(main, lines)
        finally:
            process.kill()
    raise AssertionError(why)


THREADS = """
import threading, time
def count():
    number = 0
    while True:
        number += 1
def rest():
    while True:
        time.sleep(1)
threading.Thread(target=count, daemon=True).start()
threading.Thread(target=rest, daemon=True).start()
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def test_the_lines_of_other_threads(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(THREADS)
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            found = psutil.Process(process.pid)
            before, spy = snapshot(found), Spy(process.pid, Source(found), 2, rate=RATE)
            time.sleep(2)
            spy.end()
            stacks, why = spy.stacks()
            used = before.used(snapshot(found))
        finally:
            process.kill()
    assert not why
    by_function = {next(iter(own))[-1].function: one for one, own in stacks.others.items()}
    assert {*by_function} == {"count", "rest"}
    assert used[by_function["count"]] > 2 * used[by_function["rest"]]
    assert process.pid not in stacks.others
