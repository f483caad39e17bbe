"""Temporary folders: removed at their end or by the next one, and never where they are in use."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddoctor.proc import folder
from ddoctor.proc.folder import LOCK, TAG, TemporaryFolder

# Makes a folder with content, and stays until it is killed.
OWNER = """
import time
from ddoctor.proc.folder import TemporaryFolder
folder = TemporaryFolder()
(folder.path / "tape").write_text("content")
(folder.path / "inner").mkdir()
print(folder.path, flush=True)
time.sleep(1000)
"""
NOBODY = 65534


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process, and its folder."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        try:
            yield one, Path(one.stdout.readline().strip())
        finally:
            one.kill()


def left(path: Path, host: str) -> Path:
    """A folder whose owner on this host is gone."""
    path.mkdir(mode=0o700)
    (path / LOCK).write_text(host)
    return path


Owner = tuple["subprocess.Popen[str]", Path]


def test_a_folder_is_removed_at_its_end(temporary: Path) -> None:
    with TemporaryFolder() as name:
        Path(name, "tape").touch()
        assert Path(name).stat().st_mode & 0o777 == 0o700
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize("ending", ["", "raise SystemExit(2)", "del folder"])
def test_a_folder_that_is_not_closed_is_removed_at_exit(temporary: Path, ending: str) -> None:
    """In the order in which a sweep removes it: the lock last, so that none is left half."""
    code = f"""
import shutil
from ddoctor.proc.folder import LOCK, TemporaryFolder
remove = shutil.rmtree
def checked(path, **given):
    assert not path.exists() or [one.name for one in path.iterdir()] == [LOCK]
    remove(path, **given)
shutil.rmtree = checked
folder = TemporaryFolder()
(folder.path / "tape").touch()
{ending}
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (2 * ("Exit" in ending), "")
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT, signal.SIGSEGV])
def test_the_folder_of_a_killed_process_is_swept(
    temporary: Path, owner: Owner, number: int
) -> None:
    process, path = owner
    assert (path / "tape").exists()
    process.send_signal(number)
    process.wait()
    with TemporaryFolder():
        assert not path.exists()
    assert [*temporary.iterdir()] == []


def test_a_folder_in_use_stays(owner: Owner) -> None:
    process, path = owner
    folder.sweep()
    process.send_signal(signal.SIGSTOP)
    folder.sweep()
    assert (path / "tape").exists()


def test_a_folder_stays_while_a_process_works_in_it(owner: Owner) -> None:
    process, path = owner
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, TAG: str(path)}) as worker:
        # A program that is just being executed has no environment yet.
        while TAG.encode() not in Path("/proc", str(worker.pid), "environ").read_bytes():
            time.sleep(0.01)
        process.kill()
        process.wait()
        folder.sweep()
        stayed = (path / "tape").exists()
        worker.kill()
    assert stayed
    folder.sweep()
    assert not path.exists()


def test_a_sweep_that_was_killed_is_finished_by_the_next(temporary: Path) -> None:
    path = left(temporary / "ddoctor-abcdefgh", socket.gethostname())
    folder.sweep()
    assert not path.exists()


def test_what_is_not_its_own_stays(temporary: Path) -> None:
    """TMPDIR is everyone's, and may be shared with other hosts."""
    results = temporary / "ddoctor-results"
    results.mkdir()
    (results / "report.json").touch()
    other_host = left(temporary / "ddoctor-otherhost", "another host")
    starting = left(temporary / "ddoctor-starting", "")
    aim = left(temporary / "aim", socket.gethostname())
    (temporary / "ddoctor-link").symlink_to(aim)
    linked_lock = temporary / "ddoctor-linked"
    linked_lock.mkdir()
    (linked_lock / LOCK).symlink_to(aim / LOCK)
    (temporary / "ddoctor-x.traceback").touch()
    fifo = temporary / "ddoctor-fifo"
    fifo.mkdir()
    os.mkfifo(fifo / LOCK)
    before = sorted(temporary.rglob("*"))
    folder.sweep()
    assert sorted(temporary.rglob("*")) == before
    assert {results, other_host, starting} < set(before)


def test_a_link_in_a_folder_is_not_followed(temporary: Path) -> None:
    aim = temporary / "aim"
    aim.mkdir()
    (aim / "file").touch()
    path = left(temporary / "ddoctor-abcdefgh", socket.gethostname())
    (path / "link").symlink_to(aim)
    folder.sweep()
    assert not path.exists()
    assert (aim / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_another_users_folder_stays(temporary: Path) -> None:
    path = left(temporary / "ddoctor-abcdefgh", socket.gethostname())
    os.chown(path, NOBODY, NOBODY)
    folder.sweep()
    assert (path / LOCK).exists()


def test_without_locks_nothing_is_swept(temporary: Path, owner: Owner) -> None:
    """A folder whose file system knew no lock names no host."""
    _, path = owner
    (path / LOCK).write_text("")
    folder.sweep()
    assert path.exists()
