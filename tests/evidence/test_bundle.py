from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle
from ddoctor.evidence.host import Memory, SharedMemory
from ddoctor.evidence.section import Evidence
from tests.healthy import healthy


def write(path: Path, **changes: object) -> Path:
    document = {"schema": 1, "ddoctor": "0", "created": "", "sections": []} | changes
    path.write_text(json.dumps(document))
    return path


def test_everything_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    bundle.write(path, healthy())
    assert list(bundle.read(path)) == list(healthy())


def test_a_fifo_that_no_one_writes_to_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DoctorError, match="is not a whole evidence bundle"):
        bundle.read(tmp_path / "fifo")


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    bundle.write(tmp_path / "bundle.json", healthy("doctor"))
    reader, writer = os.pipe()
    with subprocess.Popen(["cat", tmp_path / "bundle.json"], stdout=writer):
        os.close(writer)
        assert list(bundle.read(Path(f"/dev/fd/{reader}"))) == list(healthy("doctor"))
    os.close(reader)


def test_several_hosts_become_one_evidence(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, host in zip(paths, "ab", strict=True):
        bundle.write(path, Evidence([SharedMemory(host=host, size=1, free=1)]))
    assert bundle.read_all(paths).hosts == ("a", "b")


def test_two_bundles_of_one_host_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        bundle.write(path, Evidence([SharedMemory(host="a", size=1, free=1)]))
    with pytest.raises(DoctorError, match="one bundle per host"):
        bundle.read_all(paths)


def test_the_parts_of_one_host_may_come_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    bundle.write(paths[0], Evidence([SharedMemory(host="a", size=1, free=1)]))
    bundle.write(paths[1], Evidence([Memory(host="a", total=2, available=1)]))
    assert len(bundle.read_all(paths)) == 2


def test_a_field_of_a_later_version_is_passed_over(tmp_path: Path) -> None:
    section = {"type": "shared-memory", "host": "a", "size": 1, "free": 1, "colour": "blue"}
    read = bundle.read(write(tmp_path / "b.json", sections=[section]))
    assert list(read) == [SharedMemory(host="a", size=1, free=1)]


def test_a_newer_schema_says_what_to_upgrade_to(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match=r"upgrade ddoctor to at least 9\.1"):
        bundle.read(write(tmp_path / "b.json", schema=2, ddoctor="9.1"))


@pytest.mark.parametrize(
    "sections",
    [
        [{"type": "shared-memory", "host": "a", "size": "large", "free": 1}],
        [{"type": "no-such-section"}],
        {"type": "shared-memory"},
    ],
)
def test_a_damaged_bundle_is_named(tmp_path: Path, sections: object) -> None:
    with pytest.raises(DoctorError, match=r"b\.json is a damaged evidence bundle"):
        bundle.read(write(tmp_path / "b.json", sections=sections))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"a": 1}', b"log line\n"])
def test_what_is_no_bundle_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(content)
    with pytest.raises(DoctorError, match=r"b\.json is not a whole evidence bundle"):
        bundle.read(path)


def test_an_absent_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="No such file"):
        bundle.read(tmp_path / "absent.json")
    with pytest.raises(DoctorError, match="Is a directory"):
        bundle.read(tmp_path)


def test_where_it_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="cannot write the bundle"):
        bundle.write(tmp_path / "no" / "b.json", Evidence())
