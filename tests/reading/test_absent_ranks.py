"""A rank that did not come: NCCL's watchdog reports all ranks but the one that is elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from ddoctor import engine
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Report
from ddoctor.reading import reader

CAUSE = "rank-stuck-outside-collective"
EVERY = range(8)


def timeout(rank: int, numel: int = 4096) -> str:
    stamp = f"[E1127 03:12:4{rank % 8}.123456789 ProcessGroupNCCL.cpp:632]"
    return (
        f"[rank{rank}]:{stamp} [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=91, OpType=ALLREDUCE, NumelIn={numel}, NumelOut={numel}, "
        "Timeout(ms)=600000) ran for 600031 milliseconds before timing out."
    )


def work(rank: int, enqueued: int, completed: int) -> str:
    return (
        f"[rank{rank}]:[E1127 03:12:48.1 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) "
        f"Rank {rank}]  failure detected by watchdog at work sequence id: 91 PG status: "
        f"last enqueued work: {enqueued}, last completed work: {completed}"
    )


def told(folder: Path, *hosts: str) -> Report:
    for number, text in enumerate(hosts):
        (folder / f"node{number}.log").write_text(text)
    evidence, refused = reader.read([folder])
    assert refused == ()
    report = engine.examine(evidence, "diagnose")
    assert report.crashed == ()
    return report


def host(first: int, late: Collection[int], *more: str) -> str:
    """The log of a host with four ranks, as of torchrun --tee."""
    lines = [f"[default{rank - first}]:{timeout(rank)}" for rank in late]
    return "\n".join([*more, *lines]) + "\n"


def test_the_only_rank_that_does_not_time_out(tmp_path: Path) -> None:
    report = told(
        tmp_path,
        host(0, range(4)),
        host(4, (4, 5, 7), "[default2]:[rank6]: ready", "[default2]:reading shard 12"),
    )
    (found,) = report.findings
    assert (found.cause, found.where.ranks) == (CAUSE, (6,))
    assert found.confidence == Confidence.LIKELY
    assert "its last line is 'reading shard 12' (node1.log:2)" in found.because


@pytest.mark.parametrize("rank", [0, 2, 5])
def test_a_rank_that_writes_nothing(tmp_path: Path, rank: int) -> None:
    others = [one for one in EVERY if one != rank]
    report = told(tmp_path, "".join(f"{timeout(one)}\n" for one in others))
    (found,) = report.findings
    assert (found.cause, found.where.ranks) == (CAUSE, (rank,))


def test_several_that_are_few_are_possible(tmp_path: Path) -> None:
    late = [one for one in range(16) if one not in (6, 9)]
    (found,) = told(tmp_path, "".join(f"{timeout(one)}\n" for one in late)).findings
    assert (found.cause, found.where.ranks) == (CAUSE, (6, 9))
    assert found.confidence == Confidence.POSSIBLE


QUIET = {
    "all of them": [timeout(one) for one in EVERY],
    "half of them, before their launcher ended the others": [
        *(f"[rank{one}]: step 40" for one in EVERY),
        *(timeout(one) for one in EVERY[:4]),
    ],
    "one of two": ["[rank1]: step 40", timeout(0)],
    "the last one waits as well": [*(timeout(one) for one in EVERY[:7]), work(7, 93, 90)],
    "the last one raised": [
        *(timeout(one) for one in EVERY[:7]),
        "[rank7]: Traceback (most recent call last):",
        '[rank7]:   File "/home/ann/train.py", line 8, in main',
        "[rank7]:     labels = table[key]",
        "[rank7]: KeyError: 'dog'",
    ],
    "a barrier, before which rank 0 prepares something": [
        "[rank0]: tokenizing",
        *(timeout(one, numel=1) for one in EVERY[1:]),
    ],
    "it saves": ["[rank0]: Saving model checkpoint to out", *(timeout(one) for one in EVERY[1:])],
}


@pytest.mark.parametrize("name", QUIET)
def test_quiet(tmp_path: Path, name: str) -> None:
    report = told(tmp_path, "\n".join(QUIET[name]) + "\n")
    assert report.findings
    assert CAUSE not in [one.cause for one in report.findings]


def test_the_ranks_of_a_file_follow_one_another(tmp_path: Path) -> None:
    """Also where an earlier file is of another host, and before the line that says both."""
    (tmp_path / "node0.log").write_text("[default1]:[rank1]: a\n")
    late = "[default3]:step 1\n[default1]:[rank5]: b\n[default0]:step 2\n"
    (tmp_path / "node1.log").write_text(late)
    assert last_lines(tmp_path) == {1: "a", 4: "step 2", 5: "b", 7: "step 1"}


def test_a_file_of_several_hosts_tells_no_rank_by_a_local_one(tmp_path: Path) -> None:
    both = "[default1]:[rank1]: a\n[default1]:[rank5]: b\n[default0]:step 2\n"
    (tmp_path / "all.log").write_text(both)
    assert last_lines(tmp_path) == {1: "a", 5: "b"}


def test_another_file_of_the_same_host(tmp_path: Path) -> None:
    (tmp_path / "err.log").write_text("[default1]:[rank5]: a\n")
    (tmp_path / "out.log").write_text("[default0]:step 2\n")
    assert last_lines(tmp_path) == {4: "step 2", 5: "a"}


def last_lines(folder: Path) -> dict[int, str]:
    evidence, _ = reader.read([folder])
    (log,) = evidence.all(Log)
    return {one.rank: one.text for one in log.last}
