"""Recorded runs that ended badly, built by hand; the messages are as torch 2.13 prints them."""

from __future__ import annotations

from typing import Any

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.training import RankEnding, TrainingRun

RESET = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:9091. This is typically caused by a remote worker crashing."
)
LATE = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms "
    "for recv operation to complete"
)


def user(
    line: int, text: str = "", function: str = "main", file: str = "/home/u/train.py"
) -> Frame:
    return Frame(file=file, line=line, function=function, text=text, of_user=True)


def library(file: str, line: int, function: str) -> Frame:
    return Frame(file=f"/usr/lib/python3/site-packages/{file}", line=line, function=function)


ALL_REDUCE = library("torch/distributed/distributed_c10d.py", 3252, "all_reduce")
ENGINE = library("torch/autograd/graph.py", 979, "_engine_run_backward")


def ending(rank: int, outcome: str = "failed", **fields: Any) -> RankEnding:
    usual: dict[str, Any] = {"steps": 40, "host": "a", "pid": 100 + rank, "time": 12.0}
    return RankEnding(rank=rank, outcome=outcome, **usual | fields)  # type: ignore[arg-type]


def raised(
    rank: int, exception: str, message: str = "", *, line: int = 71, **fields: Any
) -> RankEnding:
    """A rank whose script raised at a line of its own."""
    stack = (user(line, "step(batch)"),)
    usual: dict[str, Any] = {"stack": stack, "exit_code": 1}
    return ending(rank, exception=exception, message=message, **usual | fields)


def echoing(rank: int, message: str = RESET, **fields: Any) -> RankEnding:
    """A rank that waited in a collective, and then failed as its peer was gone."""
    usual: dict[str, Any] = {
        "doing": "all_reduce",
        "stack": (user(72, "dist.all_reduce(loss)"), ALL_REDUCE),
        "time": 12.5,
    }
    return raised(rank, "RuntimeError", message, **usual | fields)


def run(*ranks: RankEnding, **fields: Any) -> TrainingRun:
    return TrainingRun(command=("train.py", "--data", "x"), seconds=13.0, ranks=ranks, **fields)
