"""Whatever a user names is read, or listed with the reason; nothing ends the rest."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle
from ddoctor.evidence.log import Log
from ddoctor.evidence.training import TrainingRun
from ddoctor.reading import inputs, reader
from tests.healthy import healthy

LINE = b"[rank7]: torch.AcceleratorError: CUDA error: invalid device ordinal\n"
RAISED = (
    b"[rank3]: Traceback (most recent call last):\n"
    b'[rank3]:   File "/home/ann/train.py", line 8, in main\n'
    b"[rank3]:     labels = table[key]\n"
    b"[rank3]: KeyError: 'cat'\n"
)


def log_of(path: Path) -> Log:
    evidence, refused = reader.read([path])
    assert refused == ()
    (log,) = evidence.all(Log)
    return log


@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, lzma.compress, bz2.compress, zstandard.compress]
)
def test_compressed_files_are_recognised_by_content(tmp_path: Path, compress: object) -> None:
    assert callable(compress)
    path = tmp_path / "log"
    path.write_bytes(compress(b"step 1\n" + LINE))
    log = log_of(path)
    assert (log.lines, log.ranks) == (2, 1)
    assert [(one.pattern, one.line) for one in log.events] == [("device-ordinal", 2)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        ("step 1\n".encode("utf-16"), "iconv -f utf-16 -t"),
        (("step 1\n" * 99).encode("utf-16-le"), "iconv -f utf-16le -t"),
        (("step 1\n" * 99).encode("utf-16-be"), "iconv -f utf-16be -t"),
        (bytes(100_000), "binary"),
        (Path(sys.executable).resolve().read_bytes()[:100_000], "binary"),
        (b'{"number": ' + b"9" * 1_000_000 + b"}", "JSON of no known kind"),
        (b'{"loss": [1, 2', "JSON that was cut off"),
        (b'{\n  "loss": [\n    1,\n', "JSON that was cut off"),
        (b"[" * 50_000, "JSON that was cut off"),
        (b'{"entries": [{"record_id": ' + b"9" * 1_000_000, "no records of torch"),
        (b'{"entries": [{"frames": [], "record_id": 0,', "no records of torch"),
        (b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "na', "no trace of torch"),
        (b'{"schema": ' + b"9" * 1_000_000 + b"}", "is not a whole evidence bundle"),
        (bytes(range(256)) * 40 + bytes(4000), "binary"),
        (os.urandom(100_000), "binary"),
        (gzip.compress(os.urandom(4000))[:900], "cut off"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 100, "zstd"),
        (b'{"schema": 1, "ddoctor": "1", "sec', "is not a whole evidence bundle"),
    ],
)
def test_what_is_no_log_is_refused_alone_and_listed_beside_one(
    tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DoctorError, match=words):
        reader.read([tmp_path / "a"])
    (tmp_path / "b").write_bytes(LINE)
    evidence, refused = reader.read([tmp_path])
    assert [(one.name, words in one.why) for one in refused] == [("a", True)]
    assert evidence.all(Log)[0].files == ("b",)


@pytest.mark.parametrize(
    "beginning",
    [
        b'{"level": "info"}\n{"level": "in',
        b"{\n  'lr': 0.1,\n",
        b"[2026-11-27 10:00:00] start\n",
        b"[\n",
    ],
)
def test_a_log_may_begin_like_json(tmp_path: Path, beginning: bytes) -> None:
    (tmp_path / "log").write_bytes(beginning + b"\n" + LINE)
    assert [one.pattern for one in log_of(tmp_path / "log").events] == ["device-ordinal"]


def test_a_folder_is_walked(tmp_path: Path) -> None:
    for name in "attempt_0/1/stderr.log", "attempt_0/0/stderr.log", "notes.txt":
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(LINE)
    log = log_of(tmp_path)
    assert log.files == ("notes.txt", "attempt_0/0/stderr.log", "attempt_0/1/stderr.log")


@pytest.mark.parametrize(
    "compress",
    [
        gzip.compress,
        pytest.param(lzma.compress, marks=pytest.mark.ward),
        bz2.compress,
        zstandard.compress,
    ],
)
def test_of_a_file_that_is_cut_off_the_beginning_is_read(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    whole = compress(b"step 1\n" + RAISED + os.urandom(3_000_000).hex().encode())
    (tmp_path / "a.log").write_bytes(whole[: len(whole) // 2])
    evidence, (refused,) = reader.read([tmp_path])
    (run,) = evidence.all(TrainingRun)
    assert (run.ranks[0].rank, run.ranks[0].logged) == (3, "a.log:5")
    assert refused.why.startswith("the rest, because it is damaged or cut off")


@pytest.mark.parametrize(
    ("before", "line"), [(bytes(4096), 1), (b"step 1\n" + bytes(90), 2), (b"\xef\xbb\xbf", 1)]
)
def test_nul_bytes_and_a_mark_of_the_byte_order(tmp_path: Path, before: bytes, line: int) -> None:
    (tmp_path / "log").write_bytes(before + LINE + b"step 1\n" * 1000 + bytes(10_000))
    (event,) = log_of(tmp_path / "log").events
    assert (event.line, event.rank) == (line, 7)


def test_a_number_without_an_end(tmp_path: Path) -> None:
    number = b"9" * 10_000_000
    lines = (
        b"step %s: %s%%|",
        b"[rank%s]: rank %s",
        b"  rank      : %s (local_rank: %s)",
        b"  exitcode  : -%s (pid: %s)",
        b"[Rank %s] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%s)",
        b"Duplicate GPU detected : rank %s and rank %s both on CUDA device 1",
    )
    told = b"".join(line % (number, number) + b"\n" for line in lines)
    (tmp_path / "log").write_bytes(told + LINE)
    assert [one.rank for one in log_of(tmp_path / "log").of("device-ordinal")] == [7]


def test_what_is_no_file_in_a_folder_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "denied").mkdir()
    (tmp_path / "log").write_bytes(LINE)
    scan = os.scandir

    def scandir(path: str) -> object:
        if path.endswith("denied"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    # Somebody may write to the pipe at any time.
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        evidence, refused = reader.read([tmp_path])
    finally:
        os.close(writer)
    assert evidence.all(Log)[0].files == ("log",)
    assert [one.why for one in refused] == ["it is no regular file", "Permission denied"]


def test_a_missing_file_and_a_pipe_without_a_writer_are_named(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="No such file"):
        reader.read([tmp_path / "nowhere.log"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DoctorError, match="no process writes to it"):
        reader.read([tmp_path / "pipe"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DoctorError, match="the folder is empty"):
        reader.read([tmp_path / "empty"])


def test_standard_input(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ddoctor", "diagnose", "-", "--json", "-"]
    done = subprocess.run(command, input=LINE, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert b'"nproc-exceeds-visible-gpus"' in done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_pipe_and_standard_input_are_read_from_their_first_byte(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    whole = tmp_path / "whole"
    whole.write_bytes(compress(LINE + b"step 1\n" * 100_000))
    for command in (
        f"cat {whole} | {sys.executable} -m ddoctor diagnose - --json -",
        f"{sys.executable} -m ddoctor diagnose <(cat {whole}) --json -",
    ):
        done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
        assert done.returncode == 1, done.stderr
        assert b'"nproc-exceeds-visible-gpus"' in done.stdout


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.compress])
def test_a_bundle_may_be_compressed_or_come_from_standard_input(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "b.json"
    bundle.write(path, healthy())
    path.write_bytes(compress(path.read_bytes()))
    assert list(reader.read([path])[0]) == list(healthy())
    with path.open("rb") as file:
        command = [sys.executable, "-m", "ddoctor", "diagnose", "-"]
        done = subprocess.run(command, stdin=file, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_frames_of_zstd_that_follow_one_another_are_all_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(zstandard.compress(b"step 1\n") + zstandard.compress(LINE))
    assert log_of(path).lines == 2


@pytest.mark.parametrize("pipe", ["<&-", "< /dev/null"])
def test_a_closed_or_empty_standard_input_is_one_line(pipe: str) -> None:
    command = ["bash", "-c", f"{sys.executable} -m ddoctor diagnose - {pipe}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("ddoctor: cannot read stdin: it is ")
    assert done.stderr.count("\n") == 1


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "stderr.log", tmp_path / "b" / "stderr.log", tmp_path / "c"]
    for path in paths[:2]:
        path.parent.mkdir()
        path.write_bytes(LINE)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "out.log").write_bytes(LINE)
    evidence, refused = reader.read(paths)
    assert refused == ()
    assert evidence.all(Log)[0].files == ("a/stderr.log", "b/stderr.log", "c/out.log")


def test_what_is_not_read_is_listed_without_obeying_its_name(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"\x1b[31m{number}").write_bytes(b"")
    (tmp_path / "z.log").write_bytes(LINE)
    command = [sys.executable, "-m", "ddoctor", "diagnose", str(tmp_path), "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("not read: ") == 11
    assert "not read: 2 more files" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_line_without_an_end_is_cut_and_what_follows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (5 * inputs.BLOCK) + b"\n" + LINE + b"y" * 10)
    log = log_of(path)
    assert [(one.pattern, one.line) for one in log.events] == [("device-ordinal", 2)]
    assert log.lines == 3


@pytest.mark.parametrize("mebibytes", [0.1, 0.9, 3])
def test_the_end_of_a_bar_that_never_ended_a_line_is_read(tmp_path: Path, mebibytes: float) -> None:
    bars = b"  50%|##  | 1/2 [00:01<00:01]\r" * int(mebibytes * 2**20 / 31)
    (tmp_path / "log").write_bytes(b"step 1\n" + bars + LINE + b"step 2\n")
    log = log_of(tmp_path / "log")
    events = [(one.pattern, one.line) for one in log.events if one.pattern != "progress"]
    assert (events, log.lines) == ([("device-ordinal", 2)], 3)


def test_escapes_and_carriage_returns_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"50%|##  | 1/2\r\x1b[31m\x1b[1m" + LINE.strip() + b"\x1b[0m\r\n")
    (event,) = [one for one in log_of(path).events if one.pattern == "device-ordinal"]
    assert (event.rank, event.text) == (7, LINE.decode().strip().partition("]: ")[2])
