"""Scripts that catch their own exception, as frameworks do, and then exit by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ddoctor.evidence.training import RankEnding, TrainingRun
from tests.training.conftest import MakeTraining

SCRIPT = """
    import argparse, os, sys, time, traceback
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.nn.parallel import DistributedDataParallel

    parser = argparse.ArgumentParser()
    parser.add_argument("how")
    parser.add_argument("--who", type=int, default=1)
    how = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def check(step):
        if step == 20 and how.who in (rank, -1):
            raise ValueError(f"bad sample on rank {rank}")

    def reduced(size):
        total = torch.ones(size)
        dist.all_reduce(total)

    @record
    def train(check=check):
        for step in range(200):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            time.sleep(0.005)
            if how.how == "other shapes":
                reduced(1000 if rank or step < 20 else 9000)
            elif how.how == "tolerated":
                try:
                    check(step)
                except ValueError:
                    traceback.print_exc()
            else:
                check(step)

    def main():
        try:
            train()
        except Exception:
            if how.how == "exit":
                traceback.print_exc()
                print("Set SHOW_ALL=1 for more.", file=sys.stderr)
                sys.exit(1)
            if how.how == "exit at once":
                os._exit(1)
            if how.how == "print":
                traceback.print_exc()
            if how.how == "hang":
                time.sleep(600)
            if how.how == "other shapes":
                raise
        else:
            return
        if how.how in ("print", "file"):
            os._exit(1)
    main()
"""


def place(told: Mapping[str, Any], one: RankEnding) -> str:
    """The user's line, which the report must name."""
    assert one.place is not None
    named = f"train.py:{one.place.line} in {one.place.function}"
    assert named in told["because"]
    return one.place.text


@pytest.mark.parametrize(
    ("how", "source"),
    [
        ("exit", "exit"),
        pytest.param("exit at once", "exit", marks=pytest.mark.ward),
        pytest.param("print", "TORCHELASTIC_ERROR_FILE", marks=pytest.mark.ward),
        pytest.param("file", "TORCHELASTIC_ERROR_FILE", marks=pytest.mark.ward),
    ],
)
def test_the_exception_of_one_rank(training: MakeTraining, how: str, source: str) -> None:
    trained = training(SCRIPT, how).recorded("--no-prove", "--steps=10000")
    (run,) = trained.evidence.all(TrainingRun)
    one = run.ranks[1]
    assert (one.exception, one.source) == ("ValueError", source), trained.stderr
    assert trained.first["cause"] == "dead-rank"
    assert trained.first["where"]["ranks"] == [1]
    assert "ValueError: bad sample on rank 1" in trained.first["because"]
    assert place(trained.first, one).startswith("raise ValueError")


@pytest.mark.ward
@pytest.mark.parametrize("how", ["exit", "exit at once", "file"])
def test_the_exception_of_all_ranks(training: MakeTraining, how: str) -> None:
    trained = training(SCRIPT, how, "--who=-1").recorded("--no-prove", "--steps=10000")
    (run,) = trained.evidence.all(TrainingRun)
    assert trained.first["cause"] == "script-error"
    assert trained.first["title"].startswith("All ranks raise ValueError: bad sample on rank ")
    assert place(trained.first, run.ranks[0]).startswith("raise ValueError")
    assert "dead-rank" not in trained.alarms


@pytest.mark.ward
def test_arguments_that_the_script_refuses(training: MakeTraining) -> None:
    trained = training(SCRIPT, "exit", "--who=all").recorded("--no-prove")
    assert trained.first["cause"] == "script-error"
    assert trained.first["title"] == (
        "All ranks exit with code 2: train.py: error: argument --who: invalid int value: 'all'"
    )
    assert "parser.parse_args()" in trained.first["because"]


@pytest.mark.ward
def test_an_exception_that_ends_nothing_is_no_finding(training: MakeTraining) -> None:
    trained = training(SCRIPT, "tolerated", "--who=-1").recorded("--no-prove", "--steps=10000")
    assert "ValueError: bad sample" in trained.stderr
    assert not {"script-error", "dead-rank", "first-failure-masked"} & {*trained.alarms}
    (run,) = trained.evidence.all(TrainingRun)
    assert {(one.outcome, one.exception) for one in run.ranks} == {("finished", "")}


@pytest.mark.ward
def test_a_collective_with_other_shapes(training: MakeTraining) -> None:
    """gloo aborts one rank in a thread without Python; the other one fails in the same call."""
    trained = training(SCRIPT, "other shapes").recorded("--no-prove", "--steps=10000")
    (run,) = trained.evidence.all(TrainingRun)
    assert trained.first["cause"] == "mismatched-collective-shapes", trained.stderr
    assert {one.doing for one in run.ranks} == {"all_reduce"}
    assert [place(trained.first, one) for one in run.ranks].count("dist.all_reduce(total)") >= 1
    assert trained.first["confidence"] == "likely"
