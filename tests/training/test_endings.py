"""Scripts that end badly, and scripts that never end: a report each time, and nothing is left."""

from __future__ import annotations

import os
import signal

import pytest

from ddoctor.evidence.training import TrainingRun
from tests.gpu_memory_error import error
from tests.training.conftest import MakeTraining, Trained

TRAIN = """
    import os, signal, sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    how = sys.argv[1]
    dist.init_process_group("gloo")
    others = dist.new_group(backend="gloo")
    rank = dist.get_rank()

    class Net(nn.Linear):
        def forward(self, x):
            time.sleep(0.01)
            return super().forward(x)

    model = DistributedDataParallel(Net(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def checked(loss):
        if how == "raise":
            raise ValueError("the loss is not finite")

    for step in range(100_000):
        loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step == 20:
            print("step 20", flush=True)
        if rank == 1 and step == 20:
            checked(loss)
            if how == "out of memory":
                raise torch.OutOfMemoryError(os.environ["TOLD"])
            if how == "exit at once":
                os._exit(3)
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "another collective":
                dist.all_reduce(torch.ones(1))
            if how == "waits for nothing":
                dist.barrier(others)
        if how == "exit" and step == 20:
            sys.exit(5)
"""


def told(trained: Trained) -> TrainingRun:
    assert trained.report is not None, trained.stderr
    (run,) = trained.evidence.all(TrainingRun)
    assert trained.left == []
    return run


@pytest.mark.parametrize(
    ("how", "outcome", "exit_code"),
    [
        pytest.param("raise", "failed", 1, marks=pytest.mark.ward),
        pytest.param("exit at once", "failed", 3, marks=pytest.mark.ward),
        ("killed", "killed", -9),
    ],
)
def test_the_first_rank_that_fell(
    training: MakeTraining, how: str, outcome: str, exit_code: int
) -> None:
    trained = training(TRAIN, how).recorded("--no-prove", "--steps=10000")
    run = told(trained)
    assert trained.exit_code != 0
    (one,) = (one for one in run.ranks if one.rank == 1)
    assert (one.outcome, one.exit_code, one.steps) == (outcome, exit_code, 21)
    assert trained.first["where"]["ranks"] == [1]
    assert trained.first["severity"] == "error"
    if how == "raise":
        assert (one.exception, one.message) == ("ValueError", "the loss is not finite")
        assert one.stack[-1].function == "checked"
        assert "the loss is not finite" in trained.first["because"]
        # As Python itself shows it, for who reads only the output.
        assert "ValueError: the loss is not finite" in trained.stderr


@pytest.mark.ward
def test_native_code_that_crashes_after_the_stop(training: MakeTraining) -> None:
    source = TRAIN.replace("how = sys", "import atexit; atexit.register(os.abort); how = sys")
    trained = training(source, "on").recorded("--no-prove", "--steps=12")
    run = told(trained)
    assert trained.exit_code == 0, trained.stderr
    assert [one.outcome for one in run.ranks] == ["stopped"] * len(run.ranks)


def test_native_code_that_crashes_in_the_training(training: MakeTraining) -> None:
    source = TRAIN.replace(
        "os.kill(os.getpid(), signal.SIGKILL)", '__import__("ctypes").string_at(0)'
    )
    run = told(training(source, "killed").recorded("--no-prove", "--steps=10000"))
    (one,) = (one for one in run.ranks if one.outcome == "killed")
    assert (one.rank, one.exit_code) == (1, -signal.SIGSEGV)
    assert one.stack[-1].function == "string_at"
    assert any(frame.file.endswith("train.py") for frame in one.stack)


@pytest.mark.ward
def test_a_gpu_has_no_memory_left(training: MakeTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is torch's, raised in an ordinary run."""
    monkeypatch.setenv("TOLD", error(device=1))
    trained = training(TRAIN, "out of memory").recorded("--no-prove", "--steps=10000")
    assert told(trained).ranks[1].exception == "OutOfMemoryError"
    assert trained.report is not None
    first = trained.report["findings"][0]
    assert first["cause"] == "memory-headroom-low"
    assert "rank 1" in first["because"]
    assert "after 21 steps" in first["because"]
    assert "train.py:" in first["because"]
    assert "dead-rank" not in [one["cause"] for one in trained.report["findings"]]


@pytest.mark.ward
def test_all_leave_with_a_code_of_their_own(training: MakeTraining) -> None:
    trained = training(TRAIN, "exit").recorded("--no-prove", "--steps=10000")
    assert (trained.first["cause"], trained.first["confidence"]) == ("script-error", "certain")
    assert "sys.exit(5)" in trained.first["because"]
    assert [(one.outcome, one.exit_code) for one in told(trained).ranks] == [("failed", 5)] * 2
    assert "exitcode  : 5" in trained.stderr


@pytest.mark.ward
def test_ranks_that_meet_in_different_collectives(training: MakeTraining) -> None:
    """gloo gives up, and says why on stderr alone."""
    trained = training(TRAIN, "another collective").recorded("--no-prove", "--steps=10000")
    told(trained)
    # Of the test of a rank around the call of one of them.
    assert trained.first["cause"] == "rank0-only-collective", trained.stderr
    assert "op.preamble.length <= op.nbytes" in trained.stderr
    assert trained.exit_code != 0


@pytest.mark.ward
def test_ranks_that_wait_for_each_other_for_ever(training: MakeTraining) -> None:
    trained = training(TRAIN, "waits for nothing").recorded("--no-prove", "--steps=10000")
    run = told(trained)
    assert {one.outcome for one in run.ranks} == {"hung"}, trained.stderr
    assert trained.first["cause"] == "rank0-only-collective"
    assert trained.first["severity"] == "error"
    assert [one.doing for one in run.ranks] == ["DDP's gradient reduction", "barrier"]
    assert min(one.doing_seconds for one in run.ranks) > 20
    assert trained.exit_code != 0


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.ward)]
)
def test_somebody_asks_for_the_end(training: MakeTraining, number: signal.Signals) -> None:
    # What the source says of other ways to end is no concern here.
    script = training(TRAIN.replace("dist.all_reduce(torch.ones(1))", "pass"), "never")
    with script.started(*script.under("--no-prove", "--steps=10000")) as process:
        assert process.stdout is not None
        # Some versions of gloo print lines before.
        assert "step 20\n" in process.stdout
        os.kill(process.pid, number)
        trained = script.outcome(process)
    run = told(trained)
    assert {one.outcome for one in run.ranks} == {"interrupted"}
    # Rank 1 may still be in its 21st step when rank 0 prints.
    assert all(one.steps >= 20 for one in run.ranks)
    assert trained.exit_code != 0
    assert trained.report is not None
    assert {one["severity"] for one in trained.report["findings"]} <= {"note"}


@pytest.mark.ward
def test_a_training_that_never_ends_is_stopped_at_the_same_step(training: MakeTraining) -> None:
    trained = training(TRAIN, "never").recorded("--no-prove", "--steps=20")
    run = told(trained)
    assert {one.outcome for one in run.ranks} == {"stopped"}
    assert len({one.steps for one in run.ranks}) == 1
    assert trained.exit_code == 0
