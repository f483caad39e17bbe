"""A script that trains in forked processes and in its own: FILE SEED THREADS."""

from __future__ import annotations

import multiprocessing
import os
import pty
import sys
from collections.abc import Callable
from typing import Any

FILE, SEED, THREADS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def tell(who: str, *words: str) -> None:
    """Write a line."""
    with open(FILE, "a") as file:
        file.write(f"{who}: {' '.join(words)}\n")


class Training:
    """A model that is trained step by step."""

    def __init__(self, seed: int, workers: int = 0) -> None:
        import torch

        if THREADS:
            torch.set_num_threads(THREADS)
        torch.manual_seed(seed)
        self.workers = workers
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 512), torch.nn.Dropout(0.1), torch.nn.Linear(512, 64)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.losses: list[str] = []

    def steps(self, number: int) -> None:
        """Train on."""
        from torch import randn
        from torch.utils.data import DataLoader, TensorDataset

        data = TensorDataset(randn(32 * number, 64))
        for (batch,) in DataLoader(data, 32, shuffle=True, num_workers=self.workers):
            loss = (self.model(batch) - batch).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item().hex())


def train(who: str, seed: int, workers: int = 0) -> None:
    training = Training(seed, workers)
    training.steps(40)
    tell(who, *training.losses)


def child(fork: Callable[[], int], task: Callable[..., None], *given: Any) -> int:
    """A forked process that does this."""
    pid = fork()
    if not pid:
        task(*given)
        os._exit(SEED % 100)
    return pid


def terminal() -> int:
    return pty.fork()[0]


def on(training: Training, who: str) -> None:
    training.steps(20)
    tell(who, *training.losses)


def main() -> None:
    pids = [child(os.fork, train, "before torch", SEED + 1)]
    import torch  # noqa: F401 - as of now, it is recorded

    pids.append(child(os.fork, train, "after torch", SEED + 2))
    mine = Training(SEED)
    pids.append(child(os.fork, on, mine, "model"))
    if THREADS == 1:
        pids += while_it_trains(mine)
    on(mine, "itself")
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    tell("codes", str(codes))


def while_it_trains(mine: Training) -> list[int]:
    """The same from several moments of a training; OpenMP's threads would not survive them."""
    mine.steps(15)
    pids = []
    pids.append(child(os.fork, on, mine, "recorded step"))
    mine.steps(70)
    pids.append(child(os.fork, on, mine, "resting"))
    pids.append(child(terminal, train, "terminal", SEED + 3))
    pids.append(child(os.fork, train, "workers", SEED + 4, 2))
    mine.workers = 2
    mine.steps(20)
    pids.append(child(os.fork, on, mine, "after workers"))
    process = multiprocessing.get_context("fork").Process(target=train, args=("process", SEED + 5))
    process.start()
    mine.steps(20)
    process.join()
    tell("exit code", str(process.exitcode))
    return pids


if __name__ == "__main__":
    main()
