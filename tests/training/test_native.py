"""What native code prints as it ends a rank, and what is made of it."""

from __future__ import annotations

import pytest

from ddoctor.evidence.log import Log
from ddoctor.evidence.training import RankEnding
from ddoctor.training import native
from tests.training.conftest import MakeTraining

ABORTS = """
    import os, sys
    import torch

    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for line in open(sys.argv[1]):
        os.write(2, line.encode())
    os.abort()
"""
THREADS = "".join(
    f"/pytorch/aten/src/ATen/native/cuda/NLLLoss.cu:105: nll_loss_forward: block: [0,0,0], "
    f"thread: [{thread},0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
    for thread in range(500)
)
THROWN = (
    "terminate called after throwing an instance of 'c10::AcceleratorError'\n"
    "  what():  CUDA error: device-side assert triggered\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n"
    "Exception raised from c10_cuda_check_implementation at CUDAException.cpp:44:\n"
)
FRAMES = "".join(f"frame #{n}: c10::Error::Error({'x' * 200}) + {n}\n" for n in range(40))


def rank(number: int, printed: str) -> RankEnding:
    return RankEnding(
        rank=number,
        host="node-0",
        pid=1,
        outcome="killed",
        steps=9,
        exit_code=-6,
        printed=native.brief(printed),
    )


def test_an_assertion_of_a_kernel_is_the_cause(training: MakeTraining) -> None:
    script = training(ABORTS, "printed.txt")
    (script.script.parent / "printed.txt").write_text(THREADS + THROWN + FRAMES)
    trained = script.recorded("--no-prove", "--steps=10000")
    assert trained.first["cause"] == "script-error", trained.stderr
    assert "a label outside of the classes" in trained.first["because"]
    assert trained.first["evidence"][0]["value"].endswith("`t >= 0 && t < n_classes` failed.")
    assert "dead-rank" not in trained.alarms


def test_stacks_and_repetitions_leave_room() -> None:
    one = rank(3, THREADS + THROWN + FRAMES)
    assert len(one.printed) < 1000
    assert one.words == "CUDA error: device-side assert triggered"
    found = native.log([rank(0, ""), one])
    assert found is not None
    assert {(event.rank, event.host, event.place) for event in found.events} == {
        (3, "node-0", "stderr")
    }
    assert "index-out-of-table" in [event.pattern for event in found.events]


@pytest.mark.parametrize("printed", ["", "loading the data\nepoch 1\n", FRAMES])
def test_quiet_where_nothing_has_a_meaning(printed: str) -> None:
    assert native.log([rank(0, printed)]) is None


DUMPED = """\
Fatal Python error: Aborted

Thread 0x00007f3417c146c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
Current thread 0x00007f343804ab80 (most recent call first):
  <no Python frame>

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""


def test_the_last_line_before_a_dump_of_stacks() -> None:
    assert rank(0, f"free(): invalid pointer\n{DUMPED}").words == "free(): invalid pointer"
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 3, in train\nKeyError: 1\n'
    assert rank(0, traceback + DUMPED).words == "KeyError: 1"


def test_the_last_line_where_nothing_was_thrown() -> None:
    assert rank(0, "epoch 1\nfree(): invalid pointer\n").words == "free(): invalid pointer"
    assert rank(0, "").words == ""


@pytest.mark.ward
def test_quiet_on_warnings_of_a_script_that_raises(training: MakeTraining) -> None:
    """Its exception says more than what it printed before."""
    script = training(ABORTS.replace("os.abort()", "raise ValueError('no')"), "printed.txt")
    (script.script.parent / "printed.txt").write_text(THREADS)
    trained = script.recorded("--no-prove", "--steps=10000")
    assert trained.evidence.all(Log) == ()
    assert "raise ValueError" in trained.first["because"]
