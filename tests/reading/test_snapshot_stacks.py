"""Stacks of real allocations, recorded as torch's allocator records them, and what they tell.

There is no GPU here: the stacks are those of operations on the CPU, by the same functions of torch.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._profiler import gather_traceback, symbolize_tracebacks
from torch.utils._python_dispatch import TorchDispatchMode

from ddoctor.evidence.memory_snapshot import DeviceMemory, MemorySnapshots
from ddoctor.reading import reader
from tests.memory_snapshot import MIB, Allocator, snapshot

HERE = Path(__file__).name


class Recorded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the stack of each operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stacks: list[Any] = []

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.stacks.append(gather_traceback(True, True, True))
        return func(*args, **(kwargs or {}))

    def frames(self) -> list[list[dict[str, Any]]]:
        """Those of each operation, without those of the recording."""
        found = []
        for frames in symbolize_tracebacks(self.stacks):
            names = [one["name"] for one in frames]
            found.append(frames[names.index("__torch_dispatch__") + 1 :])
        return found


@pytest.fixture(scope="module")
def phases() -> dict[str, list[list[dict[str, Any]]]]:
    """The stacks of the parts of a training step."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    sgd = torch.optim.SGD(model.parameters(), momentum=0.9)
    recorded = {
        name: Recorded() for name in ("to", "forward", "backward", "step", "sgd", "evaluate")
    }
    with pytest.MonkeyPatch.context() as patched:
        # Without it, torch runs addr2line.
        patched.setenv("TORCH_SYMBOLIZE_MODE", "dladdr")
        with recorded["to"]:
            model.to(torch.float64)
        with recorded["forward"]:
            loss = model(torch.ones(2, 8, dtype=torch.float64))
        with recorded["backward"]:
            loss.sum().backward()
        with recorded["step"]:
            optimizer.step()
        with recorded["sgd"]:
            sgd.step()
        with recorded["evaluate"]:
            evaluate(model)
        return {name: one.frames() for name, one in recorded.items()}


def evaluate(model: torch.nn.Module) -> None:
    model(torch.ones(2, 8, dtype=torch.float64)).softmax(-1)


def read(folder: Path, stacks: list[list[dict[str, Any]]]) -> DeviceMemory:
    made = Allocator()
    made.segment(*((MIB, frames) for frames in stacks))
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(made)))
    (section,) = reader.read([path])[0].all(MemorySnapshots)
    return section.devices[0]


@pytest.mark.parametrize(
    ("phase", "kinds"),
    [
        ("to", {"parameters"}),
        ("forward", {"activations"}),
        ("backward", {"gradients"}),
        ("step", {"optimizer states", "temporaries of the optimizer"}),
        ("sgd", {"optimizer states"}),
        ("evaluate", {"activations"}),
    ],
)
def test_what_a_stack_allocates(
    tmp_path: Path, phases: dict[str, list[list[dict[str, Any]]]], phase: str, kinds: set[str]
) -> None:
    one = read(tmp_path, phases[phase])
    # Other are what the script itself makes, such as its batch, and marks for a profiler.
    assert {holder.kind for holder in one.holders} - {"other"} == kinds
    assert one.of_kind("other") < 0.4 * one.allocated
    # The line is the innermost one of this file, and never one of the interpreter or of C++.
    lines = [holder.line for holder in one.holders if holder.line is not None]
    assert {Path(line.file).name for line in lines} == {HERE}
    assert {holder.in_evaluation for holder in one.holders} == {phase == "evaluate"}
