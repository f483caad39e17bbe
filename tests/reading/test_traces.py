"""Traces of torch's profiler: made by real ranks over gloo, and by hand for GPUs."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import RankSteps, Steps
from ddoctor.evidence.trace import Traces
from ddoctor.models import JUDGING, Confidence, Report, Severity, Verdict
from ddoctor.reading import reader, trace_events
from tests.conftest import LIMIT_SECONDS
from tests.traced import Dose, Made, made

SCRIPT = """
    import os, time, torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.profiler import ProfilerActivity, profile, schedule

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            time.sleep(0.04 * (what == "loads"))
            return torch.rand(64)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))

        def forward(self, batch):
            # All ranks work; only of a straggler's work, the time differs.
            time.sleep(0.15 + 0.002 * len(batch) + 0.15 * (what == "straggles" and rank == 1))
            return self.inner(batch)

    for what in ("sound", "unscheduled", "shards", "straggles", "loads", "uneven", "many"):
        model = Model()
        if what == "shards":
            fully_shard(model.inner[0])
            model = fully_shard(model)
        else:
            model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        size = 64 if what == "uneven" and rank == 1 else 4
        loader = torch.utils.data.DataLoader(Data(), batch_size=size)
        plan = schedule(wait=1, warmup=1, active=4, repeat=1) if what != "unscheduled" else None
        with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True) as seen:
            for number, batch in enumerate(loader):
                if number == 6:
                    break
                optimizer.zero_grad()
                model(batch).square().sum().backward()
                for _ in range(200 * (what == "many")):
                    dist.all_reduce(torch.ones(1))
                optimizer.step()
                if plan is not None:
                    seen.step()
        os.makedirs(what, exist_ok=True)
        seen.export_chrome_trace(f"{what}/trace_{rank}.json.gz")
    dist.barrier()
    os._exit(0)  # gloo aborts now and then while Python ends
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with the traces of two ranks that profiled one loop after the other."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "train.py").write_text(dedent(SCRIPT))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", "train.py"]
    subprocess.run(command, cwd=folder, timeout=LIMIT_SECONDS, check=True, capture_output=True)
    return folder


def report_of(*paths: Path) -> Report:
    report = engine.examine(evidence_of(*paths), "diagnose")
    assert [one for one in report.crashed if one.check != JUDGING] == []
    return report


def evidence_of(*paths: Path) -> Evidence:
    evidence, refused = reader.read(paths)
    assert refused == ()
    return evidence


def of_two(folder: Path, first: Dose, second: Dose | None = None, steps: int = 5) -> Report:
    """The report of two ranks with GPUs."""
    doses = (first, second or first)
    return report_of(
        *(
            made(rank, 2, steps, dose).write(folder / f"trace-{rank}.json")
            for rank, dose in enumerate(doses)
        )
    )


def of_rank(evidence: Evidence, rank: int = 0) -> RankSteps:
    (steps,) = evidence.all(Steps)
    return next(one for one in steps.ranks if one.place.rank == rank)


def serious(report: Report) -> list[str]:
    return [one.cause for one in report.findings if one.severity > Severity.NOTE]


@pytest.mark.parametrize("what", ["sound", "unscheduled", "shards"])
def test_real_ranks_that_are_well(real: Path, what: str) -> None:
    report = report_of(real / what)
    assert (serious(report), report.crashed) == ([], ())
    (steps,) = evidence_of(real / what).all(Steps)
    # Without a schedule, a step is the time between two ends of the optimizer's.
    assert steps.count == (5 if what == "unscheduled" else 4)
    for rank in steps.ranks:
        assert {"loader", "forward", "backward", "optimizer"} <= {*rank.by_name}
        assert rank.typical("forward") > 0.15


def test_a_real_rank_that_straggles(real: Path) -> None:
    report = report_of(real / "straggles")
    assert serious(report) == ["straggler-rank"]
    finding = report.findings[0]
    assert (finding.where.ranks, finding.confidence) == ((1,), Confidence.LIKELY)
    assert "in 4 of 4 steps, most of it in forward" in finding.because
    evidence = evidence_of(real / "straggles")
    assert of_rank(evidence, 0).typical("waiting") > 0.1 > of_rank(evidence, 1).typical("waiting")
    wait = max(evidence.all(Steps)[0].waits, key=lambda one: one.seconds)
    assert (wait.waiter, wait.late) == (0, 1)


def test_a_real_rank_with_more_data(real: Path) -> None:
    report = report_of(real / "uneven")
    assert serious(report) == ["uneven-work-per-rank"]
    assert report.findings[0].where.ranks == (1,)
    assert "more numbers in the inputs of its operators per step" in report.findings[0].because


def test_a_real_loader_that_is_slow(real: Path) -> None:
    report = report_of(real / "loads")
    assert serious(report) == ["dataloader-bottleneck"]
    assert "all ranks: the main thread loads batches itself" in report.findings[0].because


def test_real_all_reduces_of_one_number(real: Path) -> None:
    causes = {one.cause: one for one in report_of(real / "many").findings}
    finding = causes["many-small-collectives"]
    assert "each step calls 200 small collectives" in finding.because


@pytest.mark.parametrize("steps", [3, 5, 12])
def test_gpus_that_are_well(tmp_path: Path, steps: int) -> None:
    report = of_two(tmp_path, Dose(), steps=steps)
    assert (report.verdict, report.findings, report.unexplained) == (Verdict.HEALTHY, (), ())


def test_the_parts_of_a_step_on_a_gpu(tmp_path: Path) -> None:
    rank = of_rank(evidence_of(made(0, 1).write(tmp_path / "trace.json")))
    spent = {name: round(1000 * rank.typical(name), 1) for name in rank.by_name}
    # The GPU is behind the host: what it does counts by where the host launched it.
    assert (spent["forward"], spent["backward"], spent["optimizer"]) == (20.0, 20.0, 1.0)
    assert (spent["to-device"], spent["loader"]) == (0.5, 1.0)
    assert rank.place.device == "cuda:0"


def test_a_gpu_that_straggles(tmp_path: Path) -> None:
    report = of_two(tmp_path, Dose(waits=20.0), Dose(longer=20.0))
    (finding,) = report.findings
    assert (finding.cause, finding.where.ranks) == ("straggler-rank", (1,))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.where.devices == ("cuda:1",)
    (steps,) = evidence_of(tmp_path / "trace-0.json", tmp_path / "trace-1.json").all(Steps)
    # The clocks of hosts differ; the last rank's time in the all-reduce is its transfer.
    first, second = steps.ranks
    assert first.typical("waiting") == pytest.approx(0.02, abs=1e-4)
    assert first.typical("transfer") == second.typical("transfer") == pytest.approx(0.002)


def test_clocks_of_hosts_may_differ_by_hours(tmp_path: Path) -> None:
    doses = (Dose(waits=20.0), Dose(longer=20.0))
    ranks = [made(rank, 2, 5, dose, clock=1e7 * rank) for rank, dose in enumerate(doses)]
    report = report_of(*(one.write(tmp_path / f"trace-{one.rank}.json") for one in ranks))
    assert [(one.cause, one.where.ranks) for one in report.findings] == [("straggler-rank", (1,))]


def test_a_gpu_that_is_slower_by_little_in_few_steps_may_be_chance(tmp_path: Path) -> None:
    assert of_two(tmp_path, Dose(waits=6.0), Dose(longer=6.0)).findings == ()


def test_a_transfer_that_no_kernel_overlaps(tmp_path: Path) -> None:
    report = of_two(tmp_path, Dose(sends=25.0))
    assert serious(report) == ["communication-bound-step"]
    assert report.findings[0].confidence is Confidence.LIKELY


def test_a_gpu_that_waits_for_the_loader(tmp_path: Path) -> None:
    report = of_two(tmp_path, Dose(loads=30.0))
    assert serious(report) == ["dataloader-bottleneck"]
    assert "waits for its DataLoader workers" in report.findings[0].because


def test_a_loader_that_is_slow_only_once(tmp_path: Path) -> None:
    one, now = Made(world=1), 0.0
    for number in range(6):
        now = one.step(number, now, Dose(loads=200.0 if number == 2 else 1.0))
    assert serious(report_of(one.write(tmp_path / "trace.json"))) == []


@pytest.mark.parametrize("stacks", [False, True])
def test_a_loss_that_is_read_back_in_each_step(tmp_path: Path, stacks: bool) -> None:
    report = of_two(tmp_path, Dose(synced=15.0, stacks=stacks))
    (finding,) = report.findings
    assert (finding.cause, finding.severity) == ("step-loop-overhead", Severity.WARNING)
    at = " at train.py:31 in main" if stacks else ""
    assert f"after calls that wait for it: aten::item{at} 1 times a step" in finding.because


def test_kernels_that_are_launched_too_late(tmp_path: Path) -> None:
    report = of_two(tmp_path, Dose(late=2.0))
    (finding,) = report.findings
    assert finding.cause == "step-loop-overhead"
    assert "the host launches the next kernel too late: 23 kernels per step" in finding.because


def test_launches_that_a_trace_does_not_hold_are_not_late(tmp_path: Path) -> None:
    one = made(dose=Dose(late=2.0))
    one.events = [event for event in one.events if event["cat"] != "cuda_runtime"]
    assert serious(report_of(one.write(tmp_path / "trace.json"))) == []


def test_copies_from_pageable_memory(tmp_path: Path) -> None:
    report = of_two(tmp_path, Dose(copies=15.0, pageable=True))
    assert serious(report) == ["collate-bottleneck"]
    assert "1 copies per step from pageable memory, 1 MiB together" in report.findings[0].because


def test_small_copies_from_pageable_memory_cost_nothing(tmp_path: Path) -> None:
    assert of_two(tmp_path, Dose(pageable=True)).findings == ()


def test_many_small_all_reduces_on_gpus(tmp_path: Path) -> None:
    report = of_two(tmp_path, Dose(small=50))
    assert "many-small-collectives" in serious(report)


def test_ranks_of_which_some_are_missing_are_not_compared(tmp_path: Path) -> None:
    paths = [
        made(rank, 8, 5, dose).write(tmp_path / f"trace-{rank}.json")
        for rank, dose in enumerate((Dose(waits=20.0), Dose(longer=20.0)))
    ]
    report = report_of(*paths)
    assert (report.findings, report.verdict) == ((), Verdict.INCOMPLETE)
    (why,) = report.crashed
    assert "rank 0 is in collectives for 34% of the step" in why.error
    assert "only the traces of all 8 ranks show for whom it waits" in why.error


def test_a_trace_that_is_too_short(tmp_path: Path) -> None:
    report = of_two(tmp_path, Dose(waits=20.0), Dose(longer=20.0), steps=2)
    assert (report.findings, report.verdict) == ((), Verdict.INCOMPLETE)
    assert "hold the same 2 whole steps, and 3 are needed" in report.crashed[0].error


@pytest.mark.parametrize("length", [10.0, 200.0])
def test_steps_on_cpus_that_are_over_in_a_moment(tmp_path: Path, length: float) -> None:
    for rank in range(2):
        one = Made(rank=rank, world=2)
        for number in range(4):
            begin = number * length
            # Rank 0 waits in the all-reduce for rank 1, which comes last.
            ready = begin + length * (0.9 if rank else 0.1)
            one.host(f"ProfilerStep#{number}", begin, length)
            one.host("DistributedDataParallel.forward", begin, ready - begin)
            one.operator("aten::mm", begin, ready - begin)
            one.host("gloo:all_reduce", ready, 0.95 * length - (ready - begin), 200)
            one.operator("aten::add_", begin + 0.95 * length, 0.04 * length)
        one.write(tmp_path / f"rank{rank}.json")
    report = report_of(tmp_path)
    if length < 100:
        assert (report.findings, report.verdict) == ((), Verdict.INCOMPLETE)
        assert "4 steps of 10 ms on CPUs" in report.crashed[0].error
        assert "profile at least 50 steps" in report.crashed[0].error
    else:
        assert serious(report) == ["straggler-rank"]


def test_traces_of_one_rank_that_profiled_twice_are_joined(tmp_path: Path) -> None:
    for number in range(2):
        one = made(0, 1, 3)
        for event in one.events:
            name = str(event["name"])
            if name.startswith("ProfilerStep#"):
                event["name"] = f"ProfilerStep#{int(name[13:]) + 10 * number}"
        one.write(tmp_path / f"trace-{number}.json")
    (steps,) = evidence_of(tmp_path).all(Steps)
    assert (len(steps.ranks), steps.count) == (1, 6)


def test_the_same_steps_of_a_rank_are_of_two_runs(tmp_path: Path) -> None:
    for folder in "a", "b":
        (tmp_path / folder).mkdir()
        made(0, 1).write(tmp_path / folder / "trace.json")
    evidence, (refused,) = reader.read([tmp_path])
    assert refused.name == "b/trace.json"
    assert "another file has the same steps of rank 0" in refused.why
    assert evidence.all(Traces)[0].files == ("a/trace.json",)


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (("rank7.json", "rank3.json"), [3, 7]),
        (("node_2024.rank-1.pt.trace.json", "node_2025.rank-0.pt.trace.json"), [0, 1]),
        (("first.json", "second.json"), [0, 1]),
    ],
)
def test_ranks_that_only_the_names_tell(
    tmp_path: Path, names: tuple[str, ...], ranks: list[int]
) -> None:
    paths = [made(0, None).write(tmp_path / name) for name in names]
    (traces,) = evidence_of(*paths).all(Traces)
    assert [one.rank for one in traces.ranks] == ranks


def test_a_compressed_trace_among_other_files(tmp_path: Path) -> None:
    raw = made(0, 1).write(tmp_path / "trace").read_bytes()
    (tmp_path / "trace").write_bytes(gzip.compress(raw))
    (tmp_path / "train.log").write_text("step 1: loss 0.3\n")
    (tmp_path / "other.json").write_text('{"traceEvents": [{"ph": "X", "ts": 1, "name": "a"}]}')
    evidence, (refused,) = reader.read([tmp_path])
    assert evidence.all(Steps)[0].count == 5
    assert refused.name == "other.json"
    assert "a trace without steps" in refused.why


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda raw: raw[: len(raw) // 2],
    "no list": lambda raw: b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": 3}',
    "a time that is none": lambda raw: raw.replace(b'"dur": 1000.0', b'"dur": "soon"', 1),
    "a time that is too large": lambda raw: raw.replace(b'"dur": 1000.0', b'"dur": 1e300', 1),
    "deep": lambda raw: raw.replace(b'"External id": 1,', b'"x": ' + b"[" * 10**5 + b",", 1),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_trace_is_refused_in_one_line(tmp_path: Path, how: str) -> None:
    path = made().write(tmp_path / "trace.json")
    path.write_bytes(DAMAGED[how](path.read_bytes()))
    with pytest.raises(DoctorError, match="no trace of torch's profiler") as raised:
        reader.read([path])
    assert str(raised.value).isprintable()


def test_a_trace_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made().write(tmp_path / "trace.json")
    monkeypatch.setattr(trace_events, "MOST_BYTES", 10_000)
    with pytest.raises(DoctorError, match="profile fewer steps"):
        reader.read([path])
    monkeypatch.undo()
    monkeypatch.setattr(trace_events, "MOST_OBJECTS", 100)
    with pytest.raises(DoctorError, match="more than 100 events"):
        reader.read([path])


def test_steps_that_lie_in_each_other_or_have_no_length(tmp_path: Path) -> None:
    one = made(0, 1)
    one.host("ProfilerStep#99", 1.0, 5.0)
    one.host("ProfilerStep#98", 500.0, 0.0)
    one.host("ProfilerStep#4", 600.0, 1.0)
    (steps,) = evidence_of(one.write(tmp_path / "trace.json")).all(Steps)
    assert steps.count == 5


def test_what_json_may_hold_else_is_skipped(tmp_path: Path) -> None:
    one = made(0, 1)
    one.header = {"cpuClock": {"nested": [1, {"a": None}]}, "displayTimeUnit": "ms"}
    one.events.append({"ph": "f", "id": 3, "pid": 1, "tid": "x", "ts": 1, "cat": "ac2g"})
    one.events.append({"ph": "M", "name": "process_name", "args": {"name": "python"}})
    path = one.write(tmp_path / "trace.json")
    assert json.loads(path.read_text())["traceEvents"][-1]["ph"] == "M"
    assert report_of(path).verdict is Verdict.HEALTHY
