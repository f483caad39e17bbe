"""The recorder breaks nothing, changes nothing that can be seen, and stays small."""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.timeline import EVERY, IN_A_ROW
from tests.recorder.conftest import Ran, Record, Run

SIGNATURES = """
import gc, inspect
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter
for one in (
    dist.all_reduce, dist.broadcast, dist.all_gather, dist.barrier, dist.send, dist.recv,
    dist.all_gather_object, dist.reduce_scatter_tensor, dist.distributed_c10d.all_reduce,
    torch.save, dcp.save, dcp.async_save, torch.cuda.empty_cache, gc.collect,
    torch.autograd.backward, torch.autograd.grad, torch.Tensor.backward,
    torch.amp.GradScaler.step, torch.autocast.__enter__,
    DataLoader.__init__, DataLoader.__iter__, _BaseDataLoaderIter.__next__,
    DistributedDataParallel.__init__, DistributedDataParallel.forward,
    torch.optim.SGD.step, torch.optim.Optimizer.step,
):
    try:
        signature = inspect.signature(one)
    except ValueError:
        signature = None
    print(one.__module__, one.__qualname__, signature, one.__doc__ and len(one.__doc__))
@torch.jit.script
def scripted(x):
    y = x.sum()
    return torch.autograd.grad([y], [x])
@torch.jit.script
def passed(x):
    torch.autograd.backward([x.square().sum()])
    x.sum().backward()
    return x.grad
x = torch.ones(2, requires_grad=True)
print(scripted(x), passed(x))
@torch.compile(backend="eager", fullgraph=True)
def compiled(x):
    with torch.autocast("cpu"):
        return x @ x
print(compiled(torch.ones(2, 2)))
"""


def test_what_is_patched_looks_as_before(bare: Run, record_anew: Record) -> None:
    ran, without = record_anew(SIGNATURES), bare(SIGNATURES)
    assert (ran.exit_code, ran.stderr) == (0, without.stderr)
    assert ran.stdout == without.stdout != ""


BROKEN = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
sabotaged = []
def sabotage(module, name):
    def broken(*args, **kwargs):
        sabotaged.append(name)
        raise RuntimeError("the recorder's own mistake")
    if hasattr(sys.modules.get(module), name):
        setattr(sys.modules[module], name, broken)
for module, name in (
    ("ddoctor.recorder.loaders", "_tensors"),
    ("ddoctor.recorder.loader_facts", "length"),
    ("ddoctor.recorder.places", "shown"),
    ("ddoctor.recorder.collectives", "tensors_among"),
    ("ddoctor.recorder.outermost", "tensors_among"),
    ("ddoctor.recorder.outermost", "modules"),
    ("ddoctor.recorder.workers", "crc32"),
    ("ddoctor.recorder.facts", "graphs"),
    ("ddoctor.recorder.facts", "flags"),
    ("ddoctor.recorder.stepping", "ref"),
):
    sabotage(module, name)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=4, num_workers=1)
seen = 0
for epoch in range(2):
    for (x,) in loader:
        model(x).sum().backward()
        optimizer.step()
        dist.all_reduce(x)
        seen += 1
print(seen)
print(len(set(sabotaged)) > 3, file=sys.stderr)
"""


def test_a_mistake_of_the_recorder_is_not_the_scripts(bare: Run, record_anew: Record) -> None:
    ran = record_anew(BROKEN)
    assert (ran.exit_code, ran.stdout) == (0, bare(BROKEN).stdout), ran.stderr
    # It was really called, and did raise.
    assert ran.stderr == "True\n"


DAEMON = """
    import ctypes, os, resource
    for number in range(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        try:
            os.close(number)
        except OSError:
            pass
    os.closerange(3, 65536)
    file = open("mine.txt", "w")
    copy = os.dup2(file.fileno(), 1000)
    print(file.fileno(), flush=True)
    file.write("mine alone")
    file.flush()
    ctypes.string_at(0)
"""
DESCRIPTORS = """
    import os
    print(sorted(number for number in map(int, os.listdir("/proc/self/fd")) if number < 500))
"""


def test_a_crash_is_not_written_into_a_file_of_the_scripts(
    bare: Run, record_anew: Record, tmp_path: Path
) -> None:
    without, ran = bare(DAEMON), record_anew(DAEMON)
    assert (ran.exit_code, ran.stdout) == (without.exit_code, without.stdout)
    assert ran.exit_code == -signal.SIGSEGV
    assert (tmp_path / "mine.txt").read_text() == "mine alone"
    assert "string_at" in (tmp_path / "recorded" / "stack").read_text()


NATIVE = """
    import ctypes, fcntl, os
    for number in range(3, 1024):
        ctypes.CDLL(None).close(number)
    file = open("mine.txt", "w")
    taken = [file.fileno()]
    try:
        while True:
            taken.append(fcntl.fcntl(file, fcntl.F_DUPFD, 3))
    except OSError as error:
        print(error.errno, taken[0], len(taken), taken[-1], flush=True)
    file.write("mine alone")
    file.flush()
    ctypes.string_at(0)
"""


@pytest.fixture
def usual_limit() -> Iterator[None]:
    """1024 open files, which a process may raise: what a login shell has."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limits[1] <= 1024:
        pytest.skip("the limit of open files cannot be raised above 1024")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("usual_limit")
def test_native_code_may_close_and_the_script_take_every_descriptor(
    bare: Run, record_anew: Record, tmp_path: Path
) -> None:
    without, ran = bare(NATIVE), record_anew(NATIVE)
    assert (ran.exit_code, ran.stdout) == (without.exit_code, without.stdout)
    assert ran.exit_code == -signal.SIGSEGV
    assert (tmp_path / "mine.txt").read_text() == "mine alone"
    assert "string_at" in (tmp_path / "recorded" / "stack").read_text()


@pytest.mark.parametrize("hook", ["sys.excepthook", "lambda *error: print(error[:2])"])
def test_at_exit_the_hook_of_exceptions_is_the_scripts(
    bare: Run, record_anew: Record, hook: str
) -> None:
    script = f"""
        import atexit, sys
        hook = sys.excepthook = {hook}
        atexit.register(lambda: print(sys.excepthook is hook))
        1 / 0
    """
    without, ran = bare(script), record_anew(script)
    assert (ran.exit_code, ran.stdout, ran.stderr) == (1, without.stdout, without.stderr)
    assert ran.stdout.endswith("True\n")


def test_the_numbers_of_the_scripts_descriptors_are_as_without(
    bare: Run, record_anew: Record
) -> None:
    assert record_anew(DESCRIPTORS).stdout == bare(DESCRIPTORS).stdout != ""


def test_harmless_lets_pass_what_ends_the_script() -> None:
    def leave() -> None:
        raise SystemExit(3)

    def fail() -> int:
        raise ValueError("own")

    assert harmless(fail)() is None
    assert harmless(len)("four") == 4
    with pytest.raises(SystemExit):
        harmless(leave)()


FORKED = """
import os
import torch
import torch.distributed as dist
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps):
    for step in range(steps):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
train(5)
child = os.fork()
if child == 0:
    torch.save(model.state_dict(), "child.pt")
    train(50)
    raise SystemExit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
train(5)
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=train, args=(20,))
process.start()
process.join()
print(process.exitcode)
train(5)
"""


def test_a_child_records_nothing(record_anew: Record) -> None:
    ran = record_anew(FORKED, stop_at=30)
    assert (ran.exit_code, ran.stdout) == (0, "3\n0\n"), ran.stderr
    assert ran.done == 15 - 1
    assert not ran.left
    assert [row.number for row in ran.rows] == list(range(14))
    assert ran.counted("backwards")[1:] == [1] * 13
    assert ran.phase("checkpoint") == [0.0] * 14
    # The parent's ending, not the child's.
    assert ran.ending is not None
    assert (ran.ending.exception, ran.known.optimizers) == ("", ("SGD",))


QUICK = """
import json, os
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.ones(4000, 4)), batch_size=4)
def resident():
    with open("/proc/self/status") as status:
        return sum(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
total, weights = torch.zeros(1), []
for epoch in range(11):
    for (x,) in loader:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
    weights.append(resident())
print(json.dumps(weights))
"""
MOST_GROWTH = 50 * 1024


@pytest.mark.ward
def test_ten_thousand_steps_take_little_memory(bare: Run, record_anew: Record) -> None:
    ran = record_anew(QUICK)
    assert ran.exit_code == 0, ran.stderr
    assert ran.done == 10_999
    # KiB of the process's own, after the first thousand and after ten thousand more.
    first, *_, last = json.loads(ran.stdout)
    before, *_, after = json.loads(bare(QUICK).stdout)
    assert (last - first) - (after - before) < MOST_GROWTH
    # The ring holds the last of them; of steps as short as these, some in a row, and those where
    # the machine was slower for a while.
    recorded = {row.number for row in ran.rows}
    regular = {number for number in range(999, 10_999) if number % EVERY < IN_A_ROW}
    assert regular <= recorded
    assert len(recorded) <= 2 * len(regular)


CAUGHT = """
import logging, traceback, warnings
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
warnings.simplefilter("ignore")
class Broken(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        try:
            return {}["item"]
        except KeyError as error:
            raise ValueError("bad item") from error
class Net(nn.Linear):
    def forward(self, x):
        if len(x) > 4:
            raise RuntimeError("too long")
        return super().forward(x)
model = Net(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
for number in range(4):
    step()
def closure():
    traceback.print_stack()
    raise ExceptionGroup("both", [ValueError(1)])
def fail(value):
    raise OSError("again")
CALLS = (
    lambda: model(torch.ones(8, 4)),
    lambda: model(torch.ones(2, 4)).backward(),
    lambda: torch.autograd.grad(torch.ones(1), torch.ones(1)),
    lambda: optimizer.step(closure),
    lambda: torch.save(fail.__code__, "x.pt"),
    lambda: list(DataLoader(Broken(), 2)),
    lambda: list(DataLoader(Broken(), 2, num_workers=1)),
    lambda: DataLoader(Broken(), batch_size=-1),
    lambda: torch.distributed.all_reduce(torch.ones(1)),
    lambda: checkpoint(fail, torch.ones(1, requires_grad=True), use_reentrant=True),
)
for call in CALLS:
    try:
        call()
    except Exception:
        traceback.print_exc()
        logging.exception("once more")
print(len(traceback.extract_stack()), traceback.format_stack())
raise RuntimeError("at last") from ExceptionGroup("both", [KeyError("key")])
"""


@pytest.mark.ward
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have groups from Python 3.11 on")
def test_tracebacks_that_the_script_prints_are_as_without(bare: Run, record_anew: Record) -> None:
    without, ran = bare(CAUGHT), record_anew(CAUGHT)
    assert ran.stderr.count("Traceback") > 20
    assert told(ran) == told(without)


def told(ran: Ran) -> tuple[int, str, str]:
    """How it ended and what it wrote, but for addresses."""
    return ran.exit_code, ran.stdout, re.sub("0x[0-9a-f]+", "0x", ran.stderr)
