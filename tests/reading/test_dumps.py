"""Dumps of torch's flight recorder: made by real ranks over gloo, and by hand."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.evidence.flight_records import FlightDumps
from ddoctor.models import Confidence, Report
from ddoctor.reading import reader
from tests.conftest import LIMIT_SECONDS, free_port

SCRIPT = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensor = torch.ones(4)
    for step in range(3):
        dist.all_reduce(tensor)
    late = None
    if sys.argv[1] == "absent" and rank == 0:
        late = dist.all_reduce(tensor, async_op=True)
    if sys.argv[1] == "differs":
        late = (dist.all_reduce if rank == 0 else dist.all_gather_into_tensor)(
            *([tensor] if rank == 0 else [torch.ones(8), tensor]), async_op=True
        )
    time.sleep(0.5)
    with open(f"trace_{rank}", "wb") as file:
        file.write(_dump_fr_trace())
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("what", "causes"),
    [
        pytest.param("sound", [], marks=pytest.mark.ward),
        ("absent", ["rank-stuck-outside-collective"]),
        ("differs", ["rank-dependent-control-flow"]),
    ],
)
def test_dumps_of_real_ranks(tmp_path: Path, what: str, causes: list[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(dedent(SCRIPT))
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(path), what],
            cwd=tmp_path,
            env={**os.environ, **world, "RANK": str(rank), "TORCH_FR_BUFFER_SIZE": "100"},
        )
        for rank in range(2)
    ]
    assert [one.wait(LIMIT_SECONDS) for one in ranks] == [0, 0]
    evidence, refused = reader.read([tmp_path / "trace_0", tmp_path / "trace_1"])
    assert refused == ()
    report = engine.examine(evidence, "diagnose")
    assert [one.cause for one in report.findings] == causes
    for one in report.findings:
        # The files were written at once: a moving run may look like it.
        assert one.confidence < Confidence.CERTAIN
    if what == "absent":
        assert "rank 1 did not enter collective" in report.findings[0].because


def entry(number: int, *, state: str = "completed", operation: str = "all_reduce") -> object:
    return {
        "collective_seq_id": number,
        "process_group": ("0", "default_pg"),
        "profiling_name": f"nccl:{operation}",
        "state": state,
        "time_created_ns": 10**18 + number,
        "input_sizes": [(4,)],
        "input_dtypes": ["Float"],
        "frames": [{"name": "main", "filename": "/home/ann/train.py", "line": 12}],
    }


def report_of(*paths: Path) -> Report:
    evidence, _ = reader.read(paths)
    return engine.examine(evidence, "diagnose")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_rank_that_never_came(tmp_path: Path, as_json: bool) -> None:
    for rank in range(3):
        rows = [entry(1), entry(2), *([] if rank == 1 else [entry(3, state="started")])]
        value = {"version": "2.10", "pg_config": {}, "entries": rows}
        raw = json.dumps(value).encode() if as_json else pickle.dumps(value, protocol=2)
        path = tmp_path / f"nccl_trace_rank_{rank}{'.json' * as_json}"
        path.write_bytes(raw)
        os.utime(path, (10**9 + 600, 10**9 + 600))
    (finding,) = report_of(tmp_path).findings
    assert finding.cause == "rank-stuck-outside-collective"
    assert (finding.where.ranks, finding.confidence) == ((1,), Confidence.LIKELY)
    assert "in which ranks 0, 2 waited" in finding.because
    assert "train.py:12 in main" in finding.because


def test_a_pickle_that_wants_to_call_something_is_refused(tmp_path: Path) -> None:
    class Call:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, ("touch entries pg_config",)

    path = tmp_path / "trace_0"
    path.write_bytes(pickle.dumps(Call()))
    with pytest.raises(DoctorError, match="more than plain data"):
        reader.read([path])
    assert not (Path.cwd() / "entries").exists()


def test_a_dump_without_a_rank_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps({"pg_config": {}, "entries": [entry(1)]}, protocol=2))
    with pytest.raises(DoctorError, match="does not end with the rank"):
        reader.read([path])
    path.rename(tmp_path / "dump3")
    evidence, _ = reader.read([tmp_path / "dump3"])
    assert [one.rank for one in evidence.all(FlightDumps)[0].ranks] == [3]


def test_a_second_dump_of_a_rank_is_listed_and_not_taken(tmp_path: Path) -> None:
    for folder, count in ("a", 2), ("b", 1):
        path = tmp_path / folder / "trace_0"
        path.parent.mkdir()
        rows = [entry(number + 1) for number in range(count)]
        path.write_bytes(pickle.dumps({"pg_config": {}, "entries": rows}, protocol=2))
    evidence, (refused,) = reader.read([tmp_path])
    assert refused.name == "b/trace_0"
    assert "a/trace_0 is a dump of the same rank" in refused.why
    (dumps,) = evidence.all(FlightDumps)
    assert dumps.files == ("a/trace_0",)
