from __future__ import annotations

from pathlib import Path

from ddoctor.evidence.probes import StorageRead
from ddoctor.evidence.secret_forms import HIDDEN
from ddoctor.probing.journal import Follower, Journal


def test_what_is_written_is_read_at_once_and_once(tmp_path: Path) -> None:
    journal, follower = Journal(tmp_path, 3), Follower(tmp_path, 3)
    journal.write("starting")
    assert [line.doing for line in follower.new_lines()] == ["starting"]
    journal.probe = "allreduce"
    journal.write("a round")
    journal.write("done", outcome="completed", section=StorageRead(path="x"))
    round_, done = follower.new_lines()
    assert (round_.probe, round_.outcome) == ("allreduce", "")
    assert b'"storage-read"' in bytes(done.section)
    assert round_.time <= done.time
    assert list(follower.new_lines()) == []


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    Journal(tmp_path, 0).write("whole")
    path = tmp_path / "rank-0.jsonl"
    text = path.read_bytes()
    path.write_bytes(text + text[:10])
    follower = Follower(tmp_path, 0)
    assert len(list(follower.new_lines())) == 1
    with path.open("ab") as file:
        file.write(text[10:])
    assert [line.doing for line in follower.new_lines()] == ["whole"]


def test_a_rank_that_never_came_has_no_lines(tmp_path: Path) -> None:
    assert list(Follower(tmp_path, 0).new_lines()) == []


def test_no_secret_is_written(tmp_path: Path) -> None:
    secret = "hf_" + "Ab3" * 10
    journal, follower = Journal(tmp_path, 0), Follower(tmp_path, 0)
    section = StorageRead(path=f"/data/{secret}")
    journal.write(f"reading /{secret}", reason=f"token={secret}", section=section)
    assert secret not in (tmp_path / "rank-0.jsonl").read_text()
    (line,) = follower.new_lines()
    assert HIDDEN in line.doing
    assert HIDDEN in line.reason
    assert HIDDEN.encode() in bytes(line.section)
