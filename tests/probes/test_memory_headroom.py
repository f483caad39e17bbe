"""The sweep under real torchrun: two ranks on gloo, each with the memory that it was given."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from ddoctor.evidence import bundle
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.forecast.model.blueprint import Trained
from ddoctor.forecast.model.sharding import Sharding
from ddoctor.memory_sweep.search import TRIALS
from ddoctor.proc import processes
from tests.conftest import STEERING
from tests.forecast import truth
from tests.memory_sweep import exhaustive, workloads

ROOT = Path(__file__).parent.parent.parent
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
MARK = "DDOCTOR_TEST_HEADROOM"
LIMIT_SECONDS = 240
MIB = 2**20

Start = Callable[..., subprocess.Popen[str]]


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What a sweep came to."""

    report: Mapping[str, Any]
    section: MemoryHeadroom | None
    errors: str

    @property
    def causes(self) -> list[str]:
        return [finding["cause"] for finding in self.report["findings"]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a sweep of one of our workloads; nothing may stay behind."""
    mark = {MARK: tmp_path.name + str(os.getpid())}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
    own = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), "DDOCTOR_TEST_BEGAN": str(tmp_path)}

    def run(workload: str, *options: str, ranks: int = 2) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *(TORCHRUN, f"--nproc-per-node={ranks}", "-m", "ddoctor.probe", "memory_headroom"),
                f"--workload=tests.memory_sweep.workloads:{workload}",
                *("--json", "-", "--bundle", "evidence.json"),
                *options,
            ],
            env=inherited | mark | own,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    yield run
    deadline = time.monotonic() + 10
    while (left := alive(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    processes.end(0.0, **mark)
    assert left == []


def alive(mark: Mapping[str, str]) -> list[psutil.Process]:
    return [one for one in processes.carrying(**mark) if one.status() != psutil.STATUS_ZOMBIE]


def ended(process: subprocess.Popen[str], folder: Path) -> Swept:
    output, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert output.strip(), errors
    found = bundle.read(folder / "evidence.json").all(MemoryHeadroom)
    return Swept(report=json.loads(output), section=found[0] if found else None, errors=errors)


@pytest.mark.ward
def test_unequal_ranks_agree_on_what_the_smaller_one_holds(start: Start, tmp_path: Path) -> None:
    options = ("--micro-batch", "8", "--device-memory", "14MiB,12MiB")
    found = ended(start("dense", *options), tmp_path)
    section = found.section
    assert section is not None, found
    assert section.largest == exhaustive.largest(workloads.dense, 12 * MIB, ranks=2)
    assert section.too_large == section.largest + 1
    alone = [one for one in section.trials if not one.exchange]
    assert len(alone) <= TRIALS
    (short,) = [one for one in alone if one.micro_batch == section.too_large]
    assert (short.outcome, short.ranks) == ("out-of-memory", (1,))
    assert any(one.exchange and one.micro_batch == section.largest for one in section.trials)
    assert [rank.limit for rank in section.ranks] == [14 * MIB, 12 * MIB]
    assert section.tightest.place.rank == 1
    for rank in section.ranks:
        used = rank.use(section.largest)
        assert used is not None
        assert rank.limit == used.reserved + (rank.left(section.largest) or 0)
        assert used.unused == 0
        # Of a row 256 numbers and four times 512, of 4 bytes each.
        assert rank.per_sample == pytest.approx(workloads.ROWS * 9 * 1024, rel=0.01)
    assert section.safe < section.largest
    assert {one.micro_batch for one in section.rates} == {8, section.safe}
    assert "model-does-not-fit" not in found.causes
    assert "memory-headroom-low" not in found.causes
    assert not found.report["crashed"]


@pytest.mark.ward
def test_one_rank_alone_and_another_model(start: Start, tmp_path: Path) -> None:
    options = ("--micro-batch", "5", "--device-memory", "10MiB")
    found = ended(start("attention", *options, ranks=1), tmp_path)
    section = found.section
    assert section is not None, found
    assert section.largest == exhaustive.largest(workloads.attention, 10 * MIB, ranks=1)
    assert len([one for one in section.trials if not one.exchange]) <= TRIALS


@pytest.mark.ward
def test_out_of_memory_in_the_midst_of_the_exchange(start: Start, tmp_path: Path) -> None:
    """The rank goes on with the all-reduces, so that the other one is not left waiting."""
    found = ended(start("short_in_the_exchange", "--device-memory", "12MiB"), tmp_path)
    section = found.section
    assert section is not None, found
    (short,) = [one for one in section.trials if one.exchange and one.outcome != "fits"]
    assert (short.outcome, short.ranks) == ("out-of-memory", (1,))
    assert section.largest < short.micro_batch
    after = section.trials[section.trials.index(short) + 1 :]
    assert any(one.exchange and one.outcome == "fits" for one in after)
    assert section.rates


@pytest.mark.ward
def test_fsdp_holds_what_the_allocator_says(start: Start, tmp_path: Path) -> None:
    options = ("--micro-batch", "4", "--fsdp", "--device-memory", "44MiB,40MiB")
    found = ended(start("layered", *options), tmp_path)
    section = found.section
    assert section is not None, found

    def build() -> Trained:
        model, _, loss = workloads.layered()
        return Trained(model, loss)

    def needed(samples: int) -> int:
        spread = Sharding(ranks=2)
        return truth.peak(build, lambda: {"samples": samples}, torch.optim.AdamW, sharding=spread)

    assert section.sharded
    assert section.too_large == section.largest + 1
    most = needed(section.largest)
    assert most <= 40 * MIB < needed(section.too_large)
    for rank in section.ranks:
        used = rank.use(section.largest)
        assert used is not None
        assert used.allocated == most
    assert not found.report["crashed"]


@pytest.mark.ward
def test_out_of_memory_in_the_midst_of_a_sharded_step(start: Start, tmp_path: Path) -> None:
    """The rank goes on with the gathering and scattering, and makes its part anew."""
    options = ("--fsdp", "--device-memory", "40MiB")
    found = ended(start("short_in_the_gathering", *options), tmp_path)
    section = found.section
    assert section is not None, found
    (short,) = [one for one in section.trials if one.exchange and one.outcome != "fits"]
    assert (short.outcome, short.ranks) == ("out-of-memory", (1,))
    after = section.trials[section.trials.index(short) + 1 :]
    assert any(one.exchange and one.outcome == "fits" for one in after)
    assert section.rates


@pytest.mark.ward
def test_how_long_samples_can_be(start: Start, tmp_path: Path) -> None:
    options = ("--sequence", "16", "--micro-batch", "4", "--device-memory", "60MiB")
    found = ended(start("sequences", *options), tmp_path)
    assert found.section is not None, found
    longest = found.section.longest
    assert longest is not None

    def make() -> workloads.Made:
        model, optimizer, loss = workloads.sequences()
        return model, optimizer, lambda model, tokens: loss(model, 4, tokens)

    assert (longest.samples, longest.current) == (4, 16)
    assert longest.tokens == exhaustive.largest(make, 60 * MIB, ranks=2)
    assert longest.too_long == longest.tokens + 1
    # A sample of 16 tokens for each of them: 4 × 152 tokens are 38 × 16.
    assert found.section.largest == longest.tokens * 4 // 16


@pytest.mark.ward
def test_less_memory_than_the_fixed_part(start: Start, tmp_path: Path) -> None:
    found = ended(start("dense", "--micro-batch", "8", "--device-memory", "4MiB"), tmp_path)
    assert found.section is not None, found
    assert (found.section.largest, found.section.rates) == (0, ())
    assert found.causes[0] == "model-does-not-fit"
    assert found.report["findings"][0]["because"].startswith("not even one sample of ")


@pytest.mark.ward
def test_a_current_micro_batch_that_does_not_fit(start: Start, tmp_path: Path) -> None:
    options = ("--micro-batch", "500", "--device-memory", "12MiB")
    found = ended(start("dense", *options), tmp_path)
    assert found.causes[0] == "model-does-not-fit"
    assert found.section is not None
    assert found.section.largest == exhaustive.largest(workloads.dense, 12 * MIB, ranks=2)


@pytest.mark.ward
@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ("nothing", "tests.memory_sweep.workloads has no function nothing"),
        ("no_tuple", "returned Linear: return a model, its optimizer, and a function"),
        ("unused", "does not depend on 1.weight and 1 more: call requires_grad_"),
        ("sequences", "takes more than (model, samples): if the third is the number of tokens per"),
        ("no_loss", "loss(model, samples) of --workload returned NoneType: return a tensor"),
    ],
)
def test_what_cannot_be_trained_is_told(
    start: Start, tmp_path: Path, workload: str, told: str
) -> None:
    found = ended(start(workload, "--device-memory", "12MiB"), tmp_path)
    assert found.report["verdict"] == "incomplete"
    (crashed,) = found.report["crashed"]
    assert told in crashed["error"]
    assert "DoctorError" not in crashed["error"]


@pytest.mark.ward
def test_without_a_gpu_a_size_is_needed(start: Start, tmp_path: Path) -> None:
    found = ended(start("dense"), tmp_path)
    (crashed,) = found.report["crashed"]
    assert "--device-memory 24GiB" in crashed["error"]


@pytest.mark.ward
@pytest.mark.parametrize("victim", ["launcher", "rank"])
def test_killed_in_the_middle_it_leaves_nothing_running(
    start: Start, tmp_path: Path, victim: str
) -> None:
    process = start("waiting", "--device-memory", "12MiB")
    while not all((tmp_path / rank).exists() for rank in "01"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    if victim == "launcher":
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=LIMIT_SECONDS)
    else:
        worker(process, 1).send_signal(signal.SIGKILL)
        found = ended(process, tmp_path)
        assert "rank 1" in found.report["crashed"][0]["error"]


def worker(process: subprocess.Popen[str], rank: int) -> psutil.Process:
    (found,) = (
        one
        for one in psutil.Process(process.pid).children(recursive=True)
        if "ddoctor.probing.worker" in one.cmdline() and one.environ().get("RANK") == str(rank)
    )
    return found
