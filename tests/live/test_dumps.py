"""The files of flight records, and the pipe that asks for them."""

from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path

import pytest

from ddoctor.live import records
from ddoctor.reading.flight_recorder import Trace
from tests.live_look import LINE


def test_where_a_rank_writes() -> None:
    old, new = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"
    assert records.dump_files({old: "/a/old", new: "/a/new"}, 3) == ("/a/new3",)
    assert records.dump_files({old: "/a/old"}, 3) == ("/a/old3",)
    assert records.dump_files({"HOME": "/home/me"}, 3)[0] == (
        "/home/me/.cache/torch/comm_lib_trace_rank_3"
    )
    assert records.dump_files({"HOME": "/home/me", "XDG_CACHE_HOME": "/c"}, 3)[0] == (
        "/c/torch/comm_lib_trace_rank_3"
    )
    assert records.request_pipe({records.PIPE: "/a/pipe"}, 3) == "/a/pipe3.pipe"
    assert records.request_pipe({}, 3) == ""


def test_asks_who_listens(tmp_path: Path) -> None:
    pipe = tmp_path / "0.pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert records.request(pipe)
    assert os.read(reader, 10)
    os.close(reader)


def test_nobody_listens_and_nobody_waits(tmp_path: Path) -> None:
    pipe = tmp_path / "0.pipe"
    os.mkfifo(pipe)
    assert not records.request(pipe)
    assert not records.request(tmp_path / "1.pipe")


def test_nothing_is_written_into_a_file(tmp_path: Path) -> None:
    file = tmp_path / "0.pipe"
    file.write_text("results")
    assert not records.request(file)
    assert file.read_text() == "results"


def test_a_file_that_comes_in_two_parts(tmp_path: Path) -> None:
    path = tmp_path / "dump0"
    path.write_bytes(b"an earlier one")
    before = records.written(path)
    raw = pickle.dumps({"entries": []}, protocol=2)

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            file.write(raw[:5])
            time.sleep(0.3)
            file.write(raw[5:])

    thread = threading.Thread(target=write)
    thread.start()
    assert raw in records.coming(path, before)
    thread.join()


def test_no_file_comes(tmp_path: Path) -> None:
    path = tmp_path / "dump0"
    path.write_bytes(b"an earlier one")
    began = time.monotonic()
    assert list(records.coming(path, records.written(path))) == []
    assert time.monotonic() - began < 2 * records.WRITE_SECONDS


ENTRY = {
    "collective_seq_id": 7,
    "process_group": ("0", "default_pg"),
    "profiling_name": "nccl:all_reduce",
    "state": "completed",
    "time_created_ns": 5_000_000_000,
    "input_sizes": [[4, 2]],
    "input_dtypes": ["BFloat16"],
    "retired": True,
    "is_p2p": False,
}
"""As ProcessGroupNCCL writes it; these fields have been there since torch 2.4."""


def trace(*entries: dict[str, object]) -> Trace:
    return Trace(pickle.dumps({"entries": list(entries)}, protocol=2))


def test_what_nccl_recorded() -> None:
    waiting = ENTRY | {"collective_seq_id": 8, "state": "started", "retired": False}
    late = ENTRY | {"collective_seq_id": 9, "state": "scheduled", "retired": True}
    sent = ENTRY | {"collective_seq_id": 9, "is_p2p": True, "profiling_name": "nccl:send 0->1"}
    told = trace(ENTRY, waiting, late, sent)
    assert told.newest == 5.0
    (group,) = told.groups(lambda file, line, function: LINE)
    assert group.group == "nccl 0 (default_pg)"
    assert [(one.number, one.over) for one in group.calls] == [(7, True), (8, False), (9, False)]
    assert group.last == group.calls[0]
    assert group.current == group.calls[1]
    assert (group.calls[0].sizes, group.calls[0].types) == (((4, 2),), ("BFloat16",))


def test_a_group_that_was_made_anew() -> None:
    told = trace(ENTRY, ENTRY | {"collective_seq_id": 1, "state": "started"})
    (group,) = told.groups(lambda file, line, function: LINE)
    assert [one.number for one in group.calls] == [1]


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, ("evil",)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"entries": [{}]}',
        b"\x80\x02not a pickle",
        pickle.dumps({"entries": []}, protocol=2)[:-3],
        pickle.dumps([1, 2], protocol=2),
        pickle.dumps({"entries": [Evil()]}, protocol=2),
    ],
)
def test_what_torch_does_not_write_is_not_read(
    raw: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no records"):
        Trace(raw)
    assert list(tmp_path.iterdir()) == []
