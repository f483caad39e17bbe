"""A step is what lies between two steps of the optimizer, however the script makes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddoctor.recorder.stepping import NEVER, PASSES, Stepping
from ddoctor.recorder.tape import COUNT, Tape
from ddoctor.recorder.timeline import Timeline
from tests.recorder.conftest import Record, Run

BEGIN = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
other = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
second = torch.optim.Adam(other.parameters(), lr=0.01)
def loss(of=model):
    return of(torch.randn(8, 4)).square().mean()
"""
# The first step of an optimizer may be its last: steps are counted from the second one on.
BEFORE = 1

ACCUMULATED = """
for step in range(12):
    for part in range(4):
        (loss() / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TWO_OPTIMIZERS = """
for step in range(12):
    loss(other).backward()
    second.step()
    second.zero_grad()
    loss().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TWICE_A_ROUND = """
for step in range(6):
    for part in range(2):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
RARELY_THE_OTHER = """
for step in range(12):
    loss().backward()
    optimizer.step()
    if step % 4 == 0:
        loss(other).backward()
        second.step()
"""
CLOSURE = """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)
def closure():
    optimizer.zero_grad()
    found = loss()
    found.backward()
    return found
for step in range(12):
    optimizer.step(closure)
"""
PREPARING_CLOSURE = """
import time
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def closure():
    optimizer.zero_grad()
    found = loss()
    found.backward()
    time.sleep(0.02)  # as callbacks of a trainer
    return found
for step in range(8):
    optimizer.step(closure) if step % 2 else optimizer.step(closure=closure)
"""
SCHEDULED = """
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
after = torch.optim.lr_scheduler.StepLR(second, 4)
for step in range(12):
    loss().backward()
    optimizer.step()
    schedule.step()
    second.step()
    after.step()
"""
LEFT_OUT = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
before = [one.clone() for one in model.parameters()]
for step in range(12):
    scaled = scaler.scale(loss())
    (scaled * float("inf") if step < 6 else scaled).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    same = all(torch.equal(*both) for both in zip(before, model.parameters()))
    assert same == (step < 6)
"""
FUSED = """
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
second = torch.optim.AdamW(other.parameters(), foreach=True)
for step in range(12):
    (loss() + loss(other)).backward()
    optimizer.step()
    second.step()
"""
OF_ITS_OWN = """
class Mine(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for one in group["params"]:
                    one -= 0.01 * one.grad
class Derived(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
    def __eq__(self, other):
        return True  # and so it has no hash
optimizer, second = Mine(model.parameters()), Derived(other.parameters(), lr=0.01)
for step in range(12):
    (loss() + loss(other)).backward()
    optimizer.step()
    second.step()
"""
AROUND_ANOTHER = """
class Lookahead(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})
    def step(self, closure=None):
        return self.inner.step(closure)
optimizer = Lookahead(optimizer)
for step in range(12):
    loss().backward()
    optimizer.step()
"""
COMPILED_MODEL = """
compiled = torch.compile(model, backend="eager")
other.compile(backend="eager")
for step in range(12):
    (loss(compiled) + loss(other)).backward()
    optimizer.step()
    second.step()
"""
CAPTURED = """
# What torch says while a graph is captured, in which nothing runs yet.
real = torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing
for step in range(15):
    if 5 <= step < 8:
        torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True
    loss().backward()
    optimizer.step()
    torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing = real
"""
RAISING = """
class Sometimes(torch.optim.SGD):
    def step(self, closure=None):
        if self.param_groups[0]["number"] % 3 == 2:
            raise FloatingPointError("not a number")
        return super().step(closure)
optimizer = Sometimes(model.parameters(), lr=0.01)
for step in range(18):
    loss().backward()
    optimizer.param_groups[0]["number"] = step
    try:
        optimizer.step()
    except FloatingPointError:
        pass
"""
ELSEWHERE = """
import threading
def train():
    for step in range(20):
        loss(other).backward()
        second.step()
thread = threading.Thread(target=train)
thread.start()
for step in range(12):
    loss().backward()
    optimizer.step()
thread.join()
"""


@pytest.mark.parametrize(
    ("body", "forwards", "backwards", "optimizers"),
    [
        pytest.param(ACCUMULATED, 4, 4, {"SGD"}, id="accumulated"),
        pytest.param(TWO_OPTIMIZERS, None, 2, {"SGD", "Adam"}, id="two optimizers"),
        pytest.param(TWICE_A_ROUND, 1, 1, {"SGD"}, id="twice a round"),
        pytest.param(RARELY_THE_OTHER, None, None, {"SGD", "Adam"}, id="rarely the other"),
        pytest.param(CLOSURE, None, None, {"LBFGS"}, id="closure"),
        pytest.param(SCHEDULED, 1, 1, {"SGD", "Adam"}, id="scheduled"),
        pytest.param(LEFT_OUT, 1, 1, {"SGD"}, id="left out by the scaler"),
        pytest.param(FUSED, 2, 1, {"AdamW"}, id="fused and foreach"),
        pytest.param(OF_ITS_OWN, 2, 1, {"Mine", "Derived"}, id="a step of its own"),
        pytest.param(AROUND_ANOTHER, 1, 1, {"Lookahead"}, id="around another"),
        pytest.param(COMPILED_MODEL, 2, 1, {"SGD", "Adam"}, id="compiled model"),
        pytest.param(CAPTURED, None, None, {"SGD"}, id="captured"),
        pytest.param(RAISING, None, None, {"Sometimes"}, id="a step that raises"),
        pytest.param(ELSEWHERE, 1, 1, {"SGD"}, id="another thread's"),
    ],
)
def test_twelve_steps_are_twelve_steps(
    record: Record,
    body: str,
    forwards: int | None,
    backwards: int | None,
    optimizers: set[str],
) -> None:
    ran = record(BEGIN + body)
    assert ran.exit_code == 0, ran.stderr
    assert ran.done == len(ran.rows) == 12 - BEFORE
    assert set(ran.known.optimizers) == optimizers
    if forwards is not None:
        # The models are known from the second step on, which is the first row.
        assert set(ran.counted("forwards")[1:]) == {forwards}
    if backwards is not None:
        assert set(ran.counted("backwards")[1:]) == {backwards}
    for row in ran.rows:
        assert min(row.phases) >= 0.0
        assert sum(row.phases) == pytest.approx(row.end - row.begin, abs=1e-6)
    assert all(one.end == other.begin for one, other in zip(ran.rows, ran.rows[1:], strict=False))
    assert any(ran.phase("optimizer"))


MADE_ANEW = (
    BEGIN
    + """
def train(model, optimizer, steps):
    for step in range(steps):
        loss(model).backward()
        optimizer.step()
train(model, optimizer, 6)
train(other, second, 10)
del optimizer, second
model, other = nn.Linear(4, 1), None
train(model, torch.optim.SGD(model.parameters(), lr=0.01), 10)
model = nn.Linear(4, 1)
train(model, torch.optim.SGD(model.parameters(), lr=0.01), 10)
"""
)


def test_a_closure_is_the_loops_own_work(record: Record) -> None:
    ran = record(BEGIN + PREPARING_CLOSURE)
    assert ran.exit_code == 0, ran.stderr
    assert min(ran.phase("rest")[1:]) >= 0.02
    assert max(ran.phase("optimizer")[1:]) < 0.02
    assert ran.counted("backwards")[1:] == [1] * len(ran.rows[1:])


def test_an_optimizer_made_anew_goes_on(record: Record) -> None:
    ran = record(MADE_ANEW)
    assert ran.exit_code == 0, ran.stderr
    # The four steps until the second one is known for good are one, while the first is still there.
    assert ran.done == 5 + (10 - 4) + 9 + 9
    # Its model is known again, though it may lie where the one before lay.
    assert ran.counted("forwards")[-8:] == [1] * 8


COMPILED = (
    BEGIN
    + """
@torch.compile(backend="eager")
def update():
    optimizer.step()
for step in range(4):
    loss().backward()
    update()
    optimizer.zero_grad()
counters = torch._dynamo.utils.counters
print(counters["stats"], counters["graph_break"])
"""
)


@pytest.mark.ward
def test_a_step_that_is_compiled_is_compiled_as_without(bare: Run, record: Record) -> None:
    """It does without hooks, and so without steps."""
    ran = record(COMPILED)
    assert (ran.exit_code, ran.stdout, ran.done) == (0, bare(COMPILED).stdout, 0), ran.stderr


LEAVING = """
import atexit, contextlib, threading
atexit.register(lambda: print("at exit"))
@contextlib.contextmanager
def profiling():
    try:
        yield
    except Exception:
        print("an error")
        raise
    finally:
        print("left")
def train(rounds):
    for step in range(rounds):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(step)
steps = []
try:
    with profiling(), torch.profiler.profile(), torch.autograd.set_detect_anomaly(True):
        train(1000)
except Exception:
    print("an exception")
finally:
    print("after", len(steps), "steps")
print("never")
"""
KEEPING = """
for step in range(40):
    loss().backward()
    try:
        optimizer.step()
    except:
        print("caught at", step)
    optimizer.zero_grad()
    if step == 12:
        print("on without")
        break
"""


def test_it_stops_where_it_is_told_and_all_is_tidied_up(record: Record) -> None:
    ran = record(BEGIN + LEAVING, stop_at=8)
    assert ran.exit_code == 0, ran.stderr
    assert (ran.done, ran.left) == (8, True)
    # The step in which it stops has not come back to the script.
    assert ran.stdout.splitlines() == ["left", "after 8 steps", "at exit"]
    assert ran.known.growth.graph_tensors is not None
    assert ran.ending is not None
    assert ran.ending.exception == ""


def test_it_stops_again_where_the_script_catches_everything(record: Record) -> None:
    ran = record(BEGIN + KEEPING, stop_at=8)
    assert ran.exit_code == 0, ran.stderr
    assert ran.left
    caught = [f"caught at {step}" for step in range(8, 13)]
    assert ran.stdout.splitlines() == [*caught, "on without"]


@pytest.mark.ward
def test_without_a_word_it_runs_to_its_end(bare: Run, record: Record) -> None:
    source = "import torch\ntorch.manual_seed(0)\n" + BEGIN + ACCUMULATED + "print(float(loss()))"
    ran = record(source)
    assert (ran.exit_code, ran.left) == (0, False)
    assert ran.stdout == bare(source).stdout != ""


BY_HAND = """
import torch
from torch import nn
from torch.utils.data import DataLoader
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
parameters = list(model.parameters())
loader = DataLoader(torch.randn(192, 4), batch_size=8)
def loss(batch):
    return model(batch).square().mean()
def update(gradients):
    with torch.no_grad():
        torch._foreach_add_(parameters, gradients, alpha=-0.01)
"""
PLAIN_PASSES = """
for step in range(24):
    loss(torch.randn(8, 4)).backward()
    update([one.grad for one in parameters])
    model.zero_grad()
"""
TWO_PASSES_A_BATCH = """
for batch in loader:
    for half in batch.chunk(2):
        loss(half).backward()
    update([one.grad for one in parameters])
    model.zero_grad()
"""
RETURNED = """
for batch in loader:
    update(torch.autograd.grad(loss(batch), parameters))
"""


@pytest.mark.parametrize("body", [PLAIN_PASSES, TWO_PASSES_A_BATCH, RETURNED])
def test_without_an_optimizer_passes_are_steps(record: Record, body: str) -> None:
    ran = record(BY_HAND + body)
    assert ran.exit_code == 0, ran.stderr
    assert ran.done == len(ran.rows) == 24 - PASSES + 1
    assert any(ran.phase("forward"))
    assert any(ran.phase("backward"))


def test_steps_without_an_optimizer_are_counted_to_the_last(record: Record) -> None:
    """The recorder rests in the short steps of others."""
    ran = record(BY_HAND + PLAIN_PASSES.replace("24", "400"))
    assert ran.done == 400 - PASSES + 1


def test_the_run_ends_at_the_agreed_pass(record: Record) -> None:
    ran = record(BY_HAND + PLAIN_PASSES, stop_at=10)
    assert (ran.done, ran.left) == (10, True)


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        (ACCUMULATED.replace("range(4)", "range(9)"), 12 - BEFORE),
        (ACCUMULATED.replace("    optimizer.step()\n", ""), 0),
    ],
)
def test_passes_are_no_steps_where_there_is_an_optimizer(
    record: Record, body: str, steps: int
) -> None:
    assert record(BEGIN + body).done == steps


def test_an_optimizer_that_comes_later_takes_over(record: Record) -> None:
    then = """
optimizer = torch.optim.SGD(parameters, lr=0.01)
for step in range(12):
    for part in range(3):
        loss(torch.randn(8, 4)).backward()
    optimizer.step()
"""
    ran = record(BY_HAND + PLAIN_PASSES + then)
    # Until the first of its steps, its passes are told by nothing from those before.
    assert 24 - PASSES + 1 + 12 - BEFORE <= ran.done <= 24 - PASSES + 1 + 12 - BEFORE + 3


PROFILED = """
from torch.profiler import profile, schedule
with profile(schedule=schedule(wait=4, warmup=1, active=3, repeat=1)) as profiler:
    for step in range(12):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
"""


def test_steps_that_a_profiler_records_are_counted(record: Record) -> None:
    ran = record(BEGIN + PROFILED)
    assert [row.number for row in ran.rows if row.counts[COUNT["profiled"]]] == [4, 5, 6]


def test_each_call_between_steps_comes_when_it_asked_for_it(tmp_path: Path) -> None:
    stepping = Stepping(Timeline(Tape(tmp_path / "tape", create=True)))
    optimizer = torch.optim.SGD([torch.zeros(1)])
    called: dict[str, list[int]] = {"each": [], "every fifth": [], "once": [], "fails": []}

    def each(number: int) -> int:
        called["each"].append(number)
        return number + 1

    def every_fifth(number: int) -> int:
        called["every fifth"].append(number)
        return number + 5

    def once(number: int) -> int:
        called["once"].append(number)
        return NEVER

    def fails(number: int) -> int:
        called["fails"].append(number)
        raise ValueError("of the recorder")

    stepping.between_steps(each, every_fifth, once, fails)
    for step in range(BEFORE + 12):
        if step == BEFORE + 8:
            stepping.call_all()
        stepping._count(optimizer)
    every = [*range(1, 13)]
    assert called == {"each": every, "every fifth": [1, 6, 9], "once": [1, 9], "fails": every}
