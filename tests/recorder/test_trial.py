"""What a control arm changes of the script's settings, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddoctor.recorder import trial

Try = Callable[..., None]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Try:
    def change(*changes: str) -> None:
        monkeypatch.setenv(trial.VARIABLE, json.dumps(changes))

    return change


def loader(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return trial.loader_settings(args, kwargs)


def test_without_a_trial_nothing_is_changed() -> None:
    assert trial.changes() == {}
    kwargs = {"num_workers": 1}
    assert trial.loader_settings(("dataset",), kwargs) is kwargs


def test_values_are_those_of_json(tried: Try) -> None:
    tried("a.b=3", "c.d=false", "e.f=high", "g.h=2.5")
    assert trial.changes() == {"a.b": 3, "c.d": False, "e.f": "high", "g.h": 2.5}


def test_what_is_tried_takes_the_place_of_the_scripts_own(tried: Try) -> None:
    tried("loader.num_workers=3", "loader.pin_memory=true")
    assert loader("dataset", 8, num_workers=0, shuffle=True) == {
        "num_workers": 3,
        "pin_memory": True,
        "shuffle": True,
    }


def test_settings_for_workers_go_where_there_are_none(tried: Try) -> None:
    """torch refuses a prefetch factor or persistent workers without workers."""
    tried("loader.persistent_workers=true", "loader.prefetch_factor=4")
    assert loader("dataset") == {}
    assert loader("dataset", num_workers=0) == {"num_workers": 0}
    assert loader("dataset", num_workers=2) == {
        "num_workers": 2,
        "persistent_workers": True,
        "prefetch_factor": 4,
    }
    tried("loader.num_workers=0")
    given = {"num_workers": 2, "prefetch_factor": 4, "multiprocessing_context": "spawn"}
    assert loader("dataset", **given) == {"num_workers": 0}


def test_a_loader_whose_settings_have_no_names_is_left_alone(tried: Try) -> None:
    tried("loader.num_workers=3")
    assert loader("dataset", 8, False, None, None, 1) == {}


def test_other_families_are_not_the_loaders(tried: Try) -> None:
    tried("ddp.static_graph=true", "torch.threads=2")
    assert loader("dataset") == {}


IN_TORCH = """
import inspect, os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from ddoctor.recorder import trial
trial.apply()
torch.set_num_threads(7)
assert torch.get_num_threads() == 3, torch.get_num_threads()
before = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(before)})
assert os.sched_getaffinity(0) == before
assert torch.get_float32_matmul_precision() == "high"
assert "bucket_cap_mb" in inspect.signature(DDP.__init__).parameters
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DDP(torch.nn.Linear(2, 2), None, None, 0, bucket_cap_mb=25, find_unused_parameters=True)
assert not model.find_unused_parameters and not model.broadcast_buffers
assert model.bucket_bytes_cap == 3 * 2**20
model(torch.ones(1, 2)).sum().backward()
print("as tried")
"""


def test_torch_and_ddp_take_what_is_tried(tried: Try, tmp_path: Path) -> None:
    tried(
        "torch.threads=3",
        "torch.affinity=all",
        "torch.matmul_precision=high",
        "ddp.find_unused_parameters=false",
        "ddp.broadcast_buffers=false",
        "ddp.bucket_cap_mb=3",
    )
    script = tmp_path / "trial.py"
    script.write_text(IN_TORCH)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["as tried"]), done.stderr
