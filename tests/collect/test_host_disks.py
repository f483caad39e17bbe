"""Disks of the folders that a run uses, against df and a real mount."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ddoctor.collect.disks import disks, hugging_face_cache, nearest, temporary_folder
from ddoctor.evidence.host import Disk, Disks

VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HOME")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "/home/someone/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/scratch/cache"}, "/scratch/cache/huggingface/hub"),
        ({"HF_HOME": "/models"}, "/models/hub"),
        ({"HF_HOME": "~/models"}, "/home/someone/models/hub"),
        ({"HF_HOME": "/models", "HF_HUB_CACHE": "/hub"}, "/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/older"}, "/older"),
        ({"HUGGINGFACE_HUB_CACHE": "/older", "HF_HUB_CACHE": "/hub"}, "/hub"),
    ],
)
def test_the_cache_is_where_hugging_face_looks(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hugging_face_cache() == Path(expected)


def test_the_cache_is_what_huggingface_hub_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if told.returncode:
        pytest.skip("huggingface_hub is not installed")
    assert hugging_face_cache() == Path(told.stdout.strip())


def test_the_temporary_folder_is_the_first_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert temporary_folder() == Path("/tmp")
    monkeypatch.setenv("TMP", str(tmp_path))
    assert temporary_folder() == tmp_path
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    assert temporary_folder() == tmp_path


def test_what_is_not_there_yet_will_be_made_in_its_nearest_parent(tmp_path: Path) -> None:
    assert nearest(tmp_path / "a/b/c") == tmp_path
    assert nearest(tmp_path) == tmp_path


def test_one_file_system_is_told_of_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "models"))
    (disk,) = disks().disks
    assert disk.roles == ("working folder", "temporary folder", "Hugging Face cache")
    assert disk.path == str(tmp_path)
    columns = "size,used,avail,itotal,iavail,fstype,source,target"
    told = subprocess.check_output(["df", "-B1", f"--output={columns}", tmp_path], text=True)
    size, _, _, files, _, filesystem, device, mount = told.splitlines()[1].split()
    assert (disk.size, disk.filesystem) == (int(size), filesystem)
    assert (disk.device, disk.mount) == (device, mount)
    assert (disk.files or 0) == int(files)
    assert disk.writable


def test_two_file_systems_are_two_disks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "/dev/shm")
    monkeypatch.setenv("HF_HOME", "/dev/shm/models")
    if Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm is no file system of its own")
    first, second = disks().disks
    assert first.roles == ("working folder",)
    assert second.roles == ("temporary folder", "Hugging Face cache")
    assert second.mount == "/dev/shm"


def test_a_full_and_a_read_only_disk(tmp_path: Path) -> None:
    """For real: a small tmpfs in a mount namespace, filled, then remounted."""
    program = (
        "import msgspec; from ddoctor.collect.disks import disks; "
        "print(msgspec.json.encode(disks()).decode())"
    )
    script = (
        'mount -t tmpfs -o size=1m,nr_inodes=100 tmpfs "$1"; cd "$1"; '
        "head -c 1000k /dev/zero > filler; mount -o remount,ro .; "
        'exec "$2" -c "$3"'
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "sh", tmp_path, sys.executable, program],
        capture_output=True,
        text=True,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"may not mount in a namespace of its own: {done.stderr.strip()}")
    disk = msgspec.json.decode(done.stdout, type=Disks).disks[0]
    assert (disk.filesystem, disk.mount) == ("tmpfs", str(tmp_path))
    assert disk.size == 2**20
    assert disk.free_share < 0.05
    assert disk.files == 100
    assert not disk.writable


@pytest.mark.parametrize(
    ("size", "used", "free", "share"),
    [(100, 60, 40, 0.4), (100, 60, 20, 0.25), (100, None, 30, 0.3), (0, 0, 0, 1.0)],
)
def test_the_share_that_is_free(size: int, used: int | None, free: int, share: float) -> None:
    assert Disk(roles=(), path="/", size=size, used=used, free=free).free_share == share
