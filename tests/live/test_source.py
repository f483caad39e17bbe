"""The user's code as a process runs it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from ddoctor import live
from ddoctor.live.source import MOST_BYTES, Source
from tests.training_run import library, user

TRAIN = """\
def main():
    for epoch in range(3):
        for batch in loader:
            if rank == 0:
                gather()
            else:
                wait()
            while True:
                step()
        save()


main()
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """The code of this process."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    os.utime("train.py", (0, 0))
    return Source(psutil.Process())


BEGINS = """\
def exchange(other):
    work = dist.all_reduce(x, async_op=True)
    request = torch.distributed.irecv(y, other)
    request.wait()
    work.wait()
    unknown.wait()
    return dist.isend(x, other).wait()
"""


@pytest.mark.parametrize(
    ("line", "begun"), [(4, "recv"), (5, "all_reduce"), (6, ""), (7, "send"), (2, "")]
)
def test_what_began_what_a_line_waits_for(source: Source, line: int, begun: str) -> None:
    Path("work.py").write_text(BEGINS)
    os.utime("work.py", (0, 0))
    text = BEGINS.splitlines()[line - 1].strip()
    assert source.begun(user(line, text, file="work.py")) == begun


@pytest.mark.parametrize(
    ("line", "lines"),
    [(5, [2, 3, 4]), (7, [2, 3]), (9, [2, 3, 8]), (10, [2]), (13, []), (1, [])],
)
def test_what_a_line_stands_in(source: Source, line: int, lines: list[int]) -> None:
    blocks = source.blocks([user(line, file="train.py")])
    assert [one.line for one in blocks] == lines


def test_loops_and_branches_with_their_text(source: Source) -> None:
    epochs, batches, branch = source.blocks([user(5, file="train.py")])
    assert (epochs.text, epochs.loop, epochs.end) == ("for epoch in range(3):", True, 10)
    assert (batches.loop, batches.end) == (True, 9)
    assert (branch.text, branch.loop, branch.end) == ("if rank == 0:", False, 7)


ASKS = """\
rank = dist.get_rank()
master_process = rank == 0
writer: Writer | None = Writer() if rank == 0 else None
device = f"cuda:{rank}"
self.log = None if not accelerator.is_main_process else Log()
while step:
    if TEST:
        gather()
"""


@pytest.mark.parametrize(
    ("test", "asks"),
    [
        ("rank == 0", True),
        ("master_process and step % 10 == 0", True),
        ("writer is not None", True),
        ("self.log", True),
        ("trainer.log is not None", True),
        ("step % 10 == 0", False),
        ("device.type == 'cuda'", False),
        ("best is not None", False),
    ],
)
def test_branches_for_certain_ranks(source: Source, test: str, asks: bool) -> None:
    Path("ask.py").write_text(ASKS.replace("TEST", test))
    os.utime("ask.py", (0, 0))
    _, branch = source.blocks([user(8, file="ask.py")])
    assert branch.of_rank is asks


def test_of_all_the_users_frames_the_innermost_last(source: Source) -> None:
    stack = [user(10, file="train.py"), library("torch/x.py", 3, "f"), user(9, file="train.py")]
    assert [one.line for one in source.blocks(stack)] == [2, 2, 3, 8]


PASSING_OVER = """\
for step, batch in enumerate(loader):
    batch = move(batch)
    if resumes and epoch == first:
        if start is not None and step < start:
            show()
            continue
    train(batch)
while True:
    batch = next(batches)
    seen += 1
    if seen <= start: continue
    train(batch)
for epoch in range(9):
    if epoch < first: continue
    for batch in loader:
        if len(batch) < 2: continue
        if batch.bad: continue
        if seen < 9: print(seen)
        train(batch)
def cycle():
    while True:
        for batch in loader:
            yield batch
"""
BY_STEP, BY_SEEN = "if start is not None and step < start:", "if seen <= start: continue"


@pytest.mark.parametrize(
    ("lines", "skip"),
    [
        # The head of the loop, what comes before the test, and what it does then.
        *(((line,), BY_STEP) for line in (1, 2, 4, 5, 6)),
        ((9,), BY_SEEN),
        # A generator of the user's own is asked for the batch.
        ((9, 22), BY_SEEN),
        # Behind it; behind that of the epochs; nothing is counted.
        *(((line,), "") for line in (7, 12, 15, 19)),
        ((7, 22), ""),
        ((14,), "if epoch < first: continue"),
    ],
)
def test_what_a_loop_passes_over(source: Source, lines: tuple[int, ...], skip: str) -> None:
    Path("resumed.py").write_text(PASSING_OVER)
    os.utime("resumed.py", (0, 0))
    assert source.skip([user(line, file="resumed.py") for line in lines]) == skip


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        # The last one before the line; before it, at it, and by a counter; in a loop over epochs.
        ((19,), "if batch.bad: continue"),
        ((17,), "if len(batch) < 2: continue"),
        ((16,), None),
        ((7,), None),
        ((12,), None),
        ((15,), None),
    ],
)
def test_where_a_loop_takes_the_next_batch(
    source: Source, lines: tuple[int, ...], text: str | None
) -> None:
    Path("resumed.py").write_text(PASSING_OVER)
    os.utime("resumed.py", (0, 0))
    found = source.skipped_at([user(line, file="resumed.py") for line in lines])
    assert (found.text if found is not None else None) == text


def test_the_text_of_a_line(source: Source, tmp_path: Path) -> None:
    assert source.text("train.py", 4) == "if rank == 0:"
    assert source.text(str(tmp_path / "train.py"), 5) == "gather()"
    assert source.text("train.py", 99) == ""
    assert source.text(f"/{tmp_path}/train.py", 5) == "gather()", "a folder in /, where HOME is /"


@pytest.mark.parametrize("text", ["def (", "\0", "\udcff"])
def test_what_cannot_be_read_has_no_blocks(source: Source, text: str) -> None:
    Path("broken.py").write_bytes(text.encode(errors="surrogateescape"))
    os.utime("broken.py", (0, 0))
    assert source.blocks([user(1, file="broken.py"), user(1, file="gone.py")]) == ()


def test_what_was_written_since_is_not_what_runs(source: Source) -> None:
    os.utime("train.py", (time.time() + 60, time.time() + 60))
    assert source.text("train.py", 4) == ""
    assert source.blocks([user(5, file="train.py")]) == ()


def test_a_name_that_is_no_file_is_not_read(source: Source) -> None:
    """Code may be compiled under any name: neither a pipe is waited for, nor a device read."""
    os.mkfifo("pipe")
    os.utime("pipe", (0, 0))
    assert source.text("pipe", 1) == ""
    assert source.text("/dev/zero", 1) == ""


def test_a_file_too_large_for_source_is_not_read(source: Source) -> None:
    with open("large.py", "w") as file:
        file.write("first\n")
        file.truncate(MOST_BYTES + 1)
    os.utime("large.py", (0, 0))
    assert source.text("large.py", 1) == ""


HOOKS = """
def watch(gradient, every=10):
    return None
class Watch:
    def see(self, gradient):
        return None
    def send(self, state, bucket):
        return None
def compress(state, bucket):
    return bucket
"""


@pytest.mark.parametrize(
    ("line", "function", "one"),
    [(3, "watch", True), (6, "Watch.see", True), (8, "Watch.send", False), (10, "compress", False)],
)
def test_hooks_of_tensors_take_one_argument(
    source: Source, tmp_path: Path, line: int, function: str, one: bool
) -> None:
    script = tmp_path / "hooks.py"
    script.write_text(HOOKS)
    os.utime(script, (0, 0))
    found = source.frame(str(script), line, function)
    assert source.takes_a_gradient(found) is one
    assert source.returns(found) is (function == "compress")


def test_ddoctors_own_frames_are_not_the_users(source: Source) -> None:
    """`ddoctor run` starts ranks, and may do so from a checkout."""
    own = str(Path(live.__file__).parents[1] / "recorder" / "main.py")
    assert not source.frame(own, 10, "main").of_user
    assert source.frame("/home/me/ddoctor/train.py", 10, "main").of_user


TAKES = """\
def sample(self):
    with self.lock, open("rows") as rows:
        for row in rows:
            keep(row)
    with self.lock: keep(row)
    keep(row)
"""


@pytest.mark.parametrize(("line", "around"), [(2, []), (3, [2]), (4, [2]), (5, []), (6, [])])
def test_the_contexts_around_a_line(source: Source, line: int, around: list[int]) -> None:
    Path("work.py").write_text(TAKES)
    os.utime("work.py", (0, 0))
    calls = (library("torch/utils/data/x.py", 2, "next"), user(line, file="work.py"))
    assert [one.line for one in source.contexts(calls)] == around
