"""Which rank and host a line is of, in the forms of launchers and schedulers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.evidence.training import TrainingRun
from ddoctor.reading import prefixes, reader

SAID = "CUDA error: invalid device ordinal"


@pytest.mark.parametrize(
    ("line", "rank", "local", "host"),
    [
        (f"[rank3]: {SAID}", 3, None, ""),
        (f"[default3]:[rank11]: {SAID}", 11, 3, ""),
        (f"[trainer0]:{SAID}", None, 0, ""),
        (f"[1,5]<stderr>:{SAID}", 5, None, ""),
        (f"[1,mpirank:5,algo-2]<stderr>:{SAID}", 5, None, "algo-2"),
        (f"(RayTrainWorker pid=4711, ip=10.0.0.3) {SAID}", None, None, "10.0.0.3"),
        (f"(node-1 pid=4711, ip=10.0.0.3) [rank6]: {SAID}", 6, None, "10.0.0.3"),
        (f"(worker1, rank=1, pid=4711, ip=10.0.0.3) {SAID}", None, None, "10.0.0.3"),
        (f"[2026-11-25T10:00:00.123456Z] 0a1b2c3d [rank=2] || {SAID}", 2, None, ""),
        (f"[2026-11-25T10:00:00.123456Z] 0a1b2c3d || {SAID}", None, None, ""),
        (f"[pod/train-worker-1/pytorch] [rank9]: {SAID}", 9, None, "train-worker-1"),
        (f"2026-11-24T10:00:00.123456789Z [rank2]: {SAID}", 2, None, ""),
        (f"node-a:901:980 [3] NCCL WARN {SAID}", None, None, "node-a"),
        (f"1077:[default0]:{SAID}", None, 0, ""),
        (f"> > [rank5]: {SAID}", 5, None, ""),
        (f"\x1b[31m[rank4]: {SAID}\x1b[0m", 4, None, ""),
        (SAID, None, None, ""),
        (f"loss: 0.3 {SAID}", None, None, ""),
    ],
)
def test_prefixes(line: str, rank: int | None, local: int | None, host: str) -> None:
    said = prefixes.parsed(line)
    assert (said.rank, said.local, said.host) == (rank, local, host)
    assert said.text.endswith(SAID)


def test_labels_of_srun_and_pdsh_count_where_nearly_each_line_has_one() -> None:
    tasks = [f"{task:2}: step {step}" for step in range(4) for task in (0, 11)]
    label = prefixes.label_of(tasks)
    assert label is not None
    assert prefixes.parsed("11: [rank3]: x", label).rank == 3
    assert prefixes.parsed("11: x", label).rank == 11
    hosts = [f"worker-{number}: step {step}" for step in range(4) for number in (0, 1)]
    label = prefixes.label_of(hosts)
    assert label is not None
    assert prefixes.parsed("worker-1: x", label).host == "worker-1"
    prepended = [f"[{task}] step {step}" for step in range(4) for task in (0, 11)]
    label = prefixes.label_of(prepended)
    assert label is not None
    assert prefixes.parsed("[11] node-a:901:980 [3] NCCL WARN x", label).rank == 11
    assert prefixes.label_of([f"[{step}] loss 0.1" for step in range(9)]) is None
    assert prefixes.label_of(["INFO: a", "INFO: b", "INFO: c", "INFO: d", "INFO: e"]) is None
    assert prefixes.label_of(["1: a", "step 3", "loss 0.1", "step 4", "loss 0.2"]) is None


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("worker-1: [rank1]: Traceback (most recent call last):", "worker-23: x"),
        ("10.0.0.4: Traceback (most recent call last):", "10.0.0.17: x"),
        (" 3: Traceback (most recent call last):", "11: x"),
        ("[3] Traceback (most recent call last):", "[11] x"),
    ],
)
def test_a_label_counts_where_a_process_begins_a_line_after_it(line: str, others: str) -> None:
    label = prefixes.label_before(line)
    assert label is not None
    assert prefixes.parsed(line, label).text == "Traceback (most recent call last):"
    assert prefixes.parsed(others, label).text == "x"
    assert prefixes.parsed("conv2: y", label).text == "conv2: y"


@pytest.mark.parametrize(
    "line",
    [
        "worker-1: step 3",
        "conv2: Linear",
        "3: step 4",
        "ERROR: Traceback (most recent call last):",
        "Traceback (most recent call last):",
        "[rank3]: Traceback (most recent call last):",
        "epoch 3: Traceback (most recent call last):",
    ],
)
def test_no_label(line: str) -> None:
    assert prefixes.label_before(line) is None


RAISES = "Traceback (most recent call last):\nValueError: bad\n"


@pytest.mark.parametrize(
    ("name", "text", "rank"),
    [
        ("attempt_0/3/stderr.log", RAISES, 3),
        ("logs/rank_12.txt", RAISES, 12),
        ("rank5.out", RAISES, 5),
        ("rank5/train.log", RAISES, 5),
        ("rank-5-tries/train.log", RAISES, -1),
        ("train.log", RAISES, -1),
        ("prank7", RAISES, -1),
        ("a.log", RAISES.replace("Tr", "[default2]:Tr").replace("\nV", "\n[default2]:V"), 2),
        (
            "b.log",
            "[default2]:[rank10]: KeyError: 'a'\n"
            + RAISES.replace("Tr", "[default2]:Tr").replace("\nV", "\n[default2]:V"),
            10,
        ),
        ("rank_3.log", "[rank4]: ValueError: bad\n", 4),
    ],
)
def test_the_rank_of_an_exception(tmp_path: Path, name: str, text: str, rank: int) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    evidence, _ = reader.read([tmp_path])
    (run,) = evidence.all(TrainingRun)
    assert [one.rank for one in run.ranks] == [rank]


INTERLEAVED = """\
[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File "/home/ann/train.py", line 9, in <module>
[rank1]:   File "/home/ann/train.py", line 9, in <module>
step 7: 0.3
[rank1]:     main()
[rank0]:     main()
[rank1]:   File "/home/ann/train.py", line 5, in main
[rank1]:     raise ValueError("bad sample")
[rank1]: ValueError: bad sample
[rank0]:   File "/v/site-packages/torch/distributed/distributed_c10d.py", line 20, in all_reduce
[rank0]:     work.wait()
[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711
"""


def test_tracebacks_of_two_ranks_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(INTERLEAVED)
    evidence, _ = reader.read([tmp_path / "log"])
    (run,) = evidence.all(TrainingRun)
    first, other = sorted(run.ranks, key=lambda one: -one.rank)
    assert (first.rank, first.exception, first.message) == (1, "ValueError", "bad sample")
    assert [frame.line for frame in first.stack] == [9, 5]
    assert first.place is not None
    assert first.place.text == 'raise ValueError("bad sample")'
    assert (other.rank, other.echoes) == (0, True)
    assert run.failures == (first,)


CHAIN = """\
Traceback (most recent call last):
  File "/home/ann/data.py", line 3, in load
    return cache[key]
           ~~~~~^^^^^
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/ann/train.py", line 9, in <module>
    load('a')
OSError: cannot read a
step 8
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Root Cause (first observed failure):
[0]:
  time      : 2026-11-24_10:00:00
  host      : node-a
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 4711)
"""


def test_a_chain_is_one_exception_and_a_launchers_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(CHAIN)
    evidence, _ = reader.read([tmp_path / "log"])
    (run,) = evidence.all(TrainingRun)
    (one,) = run.ranks
    assert one.exception == "KeyError"
    assert one.then.startswith("OSError: cannot read a")
    # By torchrun's table, this one rank has raised it.
    assert (one.rank, one.exit_code, one.pid) == (2, 1, 4711)


def test_one_exception_of_several_ranks_is_of_each_that_ended_by_one(tmp_path: Path) -> None:
    row = "  rank      : {} (local_rank: {})\n  exitcode  : {} (pid: 4711)\n"
    table = row.format(3, 3, 1) + row.format(1, 1, -15)
    (tmp_path / "log").write_text(CHAIN + table)
    evidence, _ = reader.read([tmp_path / "log"])
    (run,) = evidence.all(TrainingRun)
    found = {one.rank: (one.exception, one.exit_code) for one in run.ranks}
    assert found == {2: ("KeyError", 1), 3: ("KeyError", 1), 1: ("", -15)}


def test_two_exceptions_without_a_rank_are_of_no_known_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(RAISES + "step 1\n" + CHAIN)
    evidence, _ = reader.read([tmp_path / "log"])
    (run,) = evidence.all(TrainingRun)
    assert sorted(one.rank for one in run.ranks) == [-1, -1, 2]


def test_the_order_of_exceptions_is_that_of_the_last_of_each_rank(tmp_path: Path) -> None:
    caught = "".join(f"[rank0]: {line}" for line in RAISES.splitlines(keepends=True))
    other = caught.replace("rank0", "rank1")
    (tmp_path / "log").write_text(caught + "step 1\n" + other + "step 2\n" + caught)
    evidence, _ = reader.read([tmp_path / "log"])
    (run,) = evidence.all(TrainingRun)
    order = [one.rank for one in sorted(run.ranks, key=lambda one: one.time)]
    assert order == [1, 0]
    lines = [one.logged for one in sorted(run.ranks, key=lambda one: one.rank)]
    assert lines == ["log:8", "log:5"]


def test_a_traceback_without_an_end_is_not_waited_for(tmp_path: Path) -> None:
    begun = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "a.py", line 9, in f\n'
    (tmp_path / "log").write_text(begun + "step\n" * 400_000 + "[rank3]: ValueError: bad\n")
    evidence, _ = reader.read([tmp_path / "log"])
    ((one,),) = (run.ranks for run in evidence.all(TrainingRun))
    assert (one.exception, one.stack, one.logged) == ("ValueError", (), "log:400003")


SPAWNED = """\
Traceback (most recent call last):
  File "/home/ann/train.py", line 20, in <module>
    mp.spawn(worker, nprocs=2)
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/v/site-packages/torch/multiprocessing/spawn.py", line 90, in _wrap
    fn(i, *args)
  File "/home/ann/train.py", line 9, in worker
    raise ValueError("bad sample")
ValueError: bad sample
"""


def test_of_a_spawned_process_its_own_exception_counts(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(SPAWNED)
    evidence, _ = reader.read([tmp_path / "log"])
    (run,) = evidence.all(TrainingRun)
    (ending,) = run.ranks
    assert (ending.exception, ending.message) == ("ValueError", "bad sample")
    assert ending.place is not None
    assert ending.place.line == 9


OF_A_NOTEBOOK = """\
---------------------------------------------------------------------------
KeyError                                  Traceback (most recent call last)
<ipython-input-3-0a1b2c> in <cell line: 2>()
      1 table = {}
----> 2 main(table)

/home/ann/train.py in main(table)
     19     for key in keys:
---> 20         pick(table)
     21

File /home/ann/data.py:8, in Source.pick(self, table)
      7 # a comment
----> 8 return table["cat"]

KeyError: 'cat'
"""


def test_tracebacks_of_notebooks(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(OF_A_NOTEBOOK)
    evidence, _ = reader.read([tmp_path / "log"])
    (run,) = evidence.all(TrainingRun)
    (ending,) = run.ranks
    assert (ending.exception, ending.message) == ("KeyError", "'cat'")
    assert [(frame.line, frame.function, frame.text) for frame in ending.stack] == [
        (2, "<module>", "main(table)"),
        (20, "main", "pick(table)"),
        (8, "pick", 'return table["cat"]'),
    ]
    assert all(frame.of_user for frame in ending.stack)
