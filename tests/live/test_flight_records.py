"""What a live run tells of its own collectives: really served, dumped and judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor import engine
from ddoctor.evidence import bundle
from ddoctor.evidence.flight_records import FlightRecords
from ddoctor.evidence.live import LiveLook
from ddoctor.models import Finding
from tests.flight_records import unseen
from tests.live.conftest import Live, StartLive

RECORDED = {"TORCH_FR_BUFFER_SIZE": "2000"}
SERVES = """
from torch.distributed.elastic.control_plane import worker_main
global server
server = worker_main()
server.__enter__()
"""
SHAPES = {
    "before": """
        global exchange
        def exchange():
            length = 4_000_000 if rank == 1 else 1_000_000
            dist.all_reduce(torch.ones(length))
            dist.barrier()
        """,
    "work": "if step == 20: exchange()",
}


def recorded(live: Live, path: Path) -> FlightRecords:
    (found,) = bundle.read(path).all(FlightRecords)
    assert [one.pid for one in found.ranks] == [one.pid for one in live.ranks()]
    return found


def without_stacks(path: Path) -> Finding:
    """What is told first where the same is looked at, and ptrace is forbidden."""
    evidence = bundle.read(path)
    blind = map(unseen, evidence.all(LiveLook))
    return engine.examine(evidence.with_sections(*blind), "diagnose").findings[0]


@pytest.mark.ward
def test_different_shapes_by_the_control_socket(start: StartLive, tmp_path: Path) -> None:
    live = start(served=True, early=SERVES, environment=RECORDED, **SHAPES)
    live.wait_for(19)
    path = tmp_path / "look.json"
    attached = live.attach("--bundle", str(path))
    assert attached.causes == ["mismatched-collective-shapes"]
    assert attached.first["confidence"] == "certain"
    because = attached.first["because"]
    place = live.place("dist.all_reduce(torch.ones(length))")
    assert (
        "rank 0 called all_reduce of 1000000 Float, "
        f"rank 1 called all_reduce of 4000000 Float at {place} in exchange"
    ) in because
    behind = recorded(live, path).ranks[1].groups[0]
    assert behind.current is not None
    assert behind.current.sizes == ((4_000_000,),)
    # And elsewhere, from the bundle; and where no stack could have been read.
    (finding, *_) = engine.examine(bundle.read(path), "diagnose").findings
    assert finding.because == because
    finding = without_stacks(path)
    assert finding.cause == "mismatched-collective-shapes"
    assert "rank 1 called all_reduce of 4000000 Float, according to" in finding.because


@pytest.mark.ward
def test_another_branch_by_the_control_socket(start: StartLive) -> None:
    work = """
        skip = step == 20 and rank == 1
        if skip: dist.all_reduce(torch.ones(1))
        if step == 20: dist.barrier()
        """
    live = start(served=True, early=SERVES, environment=RECORDED, work=work)
    live.wait_for(19)
    first = live.attach().first
    assert (first["cause"], first["confidence"]) == ("rank-dependent-control-flow", "certain")
    assert "rank 0 called barrier at train.py" in first["because"]
    assert "rank 1 called all_reduce of 1 Float at train.py" in first["because"]


@pytest.mark.ward
def test_a_sound_run_goes_on_and_nothing_is_told(start: StartLive, tmp_path: Path) -> None:
    live = start(served=True, early=SERVES, environment=RECORDED)
    live.wait_for(20)
    before = live.step(0)
    path = tmp_path / "look.json"
    assert live.attach("--bundle", str(path)).causes == []
    assert live.step(0) > before
    for one in recorded(live, path).ranks:
        assert one.told_by == "control socket"
        (group,) = one.groups
        assert group.group == "gloo 0 (default_pg)"
        assert {call.operation for call in group.calls} == {"all_reduce"}


@pytest.mark.ward
def test_who_is_behind(start: StartLive, tmp_path: Path) -> None:
    work = "if step == 20 and rank == 1: os.read(os.pipe()[0], 1)"
    live = start(served=True, early=SERVES, environment=RECORDED, work=work)
    live.wait_for(19)
    path = tmp_path / "look.json"
    assert live.attach("--bundle", str(path)).causes == ["rank-stuck-outside-collective"]
    finding = without_stacks(path)
    assert (finding.cause, finding.where.ranks) == ("rank-stuck-outside-collective", (1,))
    assert "did not enter collective" in finding.because
    assert "in which rank 0 waits" in finding.because


@pytest.mark.ward
def test_who_is_stopped_does_not_answer(start: StartLive) -> None:
    live = start(served=True, early=SERVES, environment=RECORDED)
    live.wait_for(20)
    live.stop(1)
    assert live.attach().causes == ["rank-stuck-outside-collective"]


# As ProcessGroupNCCL does it: a pipe, and a thread that waits for a word in it. The file is
# torch's own.
LISTENS = """
global listen
def listen():
    name = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + f"{rank}.pipe"
    os.mkfifo(name)
    with open(name, "rb") as pipe:
        pipe.read(1)
    from torch._C._distributed_c10d import _dump_fr_trace
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank), "wb") as file:
        file.write(_dump_fr_trace())
threading.Thread(target=listen, daemon=True).start()
"""


@pytest.mark.ward
def test_different_shapes_by_pipe_and_file(start: StartLive, tmp_path: Path) -> None:
    files = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "pipe", "TORCH_FR_DUMP_TEMP_FILE": "dump"}
    live = start(early=LISTENS, environment=RECORDED | files, **SHAPES)
    live.wait_for(19)
    path = tmp_path / "look.json"
    attached = live.attach("--bundle", str(path), "--redact")
    assert (attached.first["cause"], attached.first["confidence"]) == (
        "mismatched-collective-shapes",
        "likely",
    )
    place = live.place("dist.all_reduce(torch.ones(length))")
    assert f"all_reduce of 1000000 Float at {place} in exchange" in attached.first["because"]
    one = recorded(live, path).ranks[0]
    assert one.told_by == "dump file"
    line = one.groups[0].calls[-1].line
    assert line is not None
    assert (line.file, line.text) == ("train.py", "dist.barrier()")
