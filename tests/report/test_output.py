"""Where reports cannot or must not be written is told before the work, in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle
from ddoctor.evidence.section import Evidence
from ddoctor.forecast import launch_files
from ddoctor.report.options import ReportOptions, _in_folders, _of_this_host
from ddoctor.report.output import Outputs, put
from ddoctor.training.options import RunOptions

NOBODY = 65534
LONG = "a" * 300


@contextmanager
def without_rights() -> Iterator[None]:
    """As a user to whom no file of root belongs."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def refused(words: str, **given: Any) -> None:
    with pytest.raises(DoctorError, match=words):
        Outputs(**given)


def test_two_outputs_need_two_files(tmp_path: Path) -> None:
    """Else the last one replaces the others, and nothing tells so."""
    there = tmp_path / "there"
    there.touch()
    (tmp_path / "link").symlink_to(there)
    (tmp_path / "hard").hardlink_to(there)
    for name in ("there", "link", "hard", "../" + tmp_path.name + "/there"):
        refused("another output goes to it", json=there, html=tmp_path / name)
    refused("another output goes to it", markdown=tmp_path / "new", bundle=tmp_path / "." / "new")
    refused("another output goes to it", json=tmp_path / "fit.txt", hosts=tmp_path)


def test_a_device_takes_several_outputs() -> None:
    Outputs(json=Path("/dev/null"), html=Path("/dev/null"))


def test_what_is_read_is_not_overwritten(tmp_path: Path) -> None:
    read = tmp_path / "bundle.json"
    read.touch()
    (tmp_path / "link").symlink_to(read)
    for name in ("bundle.json", "link"):
        with pytest.raises(DoctorError, match=f"cannot write .*{name}: it is read"):
            Outputs(html=tmp_path / name, reads=[read])
    with pytest.raises(DoctorError, match="it is read"):
        RunOptions(json=read).outputs(read)
    assert ReportOptions(json=tmp_path / "other").outputs(read).json == tmp_path / "other"


def test_a_pipe_without_a_reader_is_not_waited_for(tmp_path: Path) -> None:
    """The exit code of a training must not wait for it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(DoctorError, match=r"pipe: there is no process at its other end"):
        put(pipe, "text")
    with pytest.raises(DoctorError, match=r"pipe: there is no process at its other end"):
        bundle.write(pipe, Evidence([]))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    put(pipe, "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (LONG, "File name too long"),
        ("loop", "Too many levels of symbolic links"),
        ("dangling", "there is no folder .*/missing"),
        ("file/report", "Not a directory"),
    ],
)
def test_a_path_that_cannot_be(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("missing/report")
    (tmp_path / "file").touch()
    refused(words, json=tmp_path / name)


def test_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    closed = Path("closed")
    (closed / "inner").mkdir(parents=True)
    (closed / "bundle.json").touch()
    closed.chmod(0)
    with without_rights():
        refused("Permission denied", json=closed / "inner" / "report")
        (path,) = _in_folders([closed / "bundle.json"])
        with pytest.raises(DoctorError, match=r"cannot read closed/bundle.json: Permission denied"):
            bundle.read(path)
        assert _of_this_host(closed / "inner") == closed / "inner"
        with pytest.raises(DoctorError, match="cannot write into closed/inner: permission denied"):
            launch_files.check_folder(closed / "inner", replace=True)
    closed.chmod(0o755)


def test_a_bundle_whose_name_is_too_long_is_refused() -> None:
    (found,) = _in_folders([Path(LONG)])
    with pytest.raises(DoctorError, match="File name too long"):
        bundle.read(found)


def test_a_host_may_have_a_name_that_is_no_utf_8(tmp_path: Path) -> None:
    put(tmp_path / "fit.txt", "h\udcffx\n")
    assert (tmp_path / "fit.txt").read_bytes() == b"h\xffx\n"
