"""A process that has imported torch, and forks for each script that is to be recorded.

The imports of torch and of what its optimizers need take longer than most of these scripts.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from typing import Any

import torch
import torch._dynamo  # what the first optimizer imports
import torch.distributed

from ddoctor.recorder import main as recorder


def main() -> None:
    """One order a line, and a line with the exit code after each."""
    assert not torch.distributed.is_initialized()
    # No child has to look through what is here already, or to take it down at its end.
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            return _grow_up(order)
        print(_ended(child, time.monotonic() + order["limit_seconds"]), flush=True)


def _ended(child: int, deadline: float) -> int:
    while time.monotonic() < deadline:
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError("the script did not come to its end")


def _grow_up(order: dict[str, Any]) -> None:
    """From here on a process of its own; what it raises ends it as it would end any."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(order[name], flags), number)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["-c", *order["words"]]
    # -m has put the tests' own folder first.
    del sys.path[0]
    recorder.main({*sys.modules})


if __name__ == "__main__":
    main()
