from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.cluster import local_probes
from ddoctor.evidence.probes import ProbeRuns, StorageRead
from ddoctor.evidence.section import Evidence
from tests.probes.conftest import LARGE_BYTES, SMALL_BYTES, SMALL_FILES

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def section(evidence: Evidence) -> StorageRead:
    (section,) = evidence.all(StorageRead)
    return section


def test_the_large_file_is_read_as_a_stream(section: StorageRead) -> None:
    assert section.sequential_bytes == LARGE_BYTES
    assert section.sequential is not None
    assert section.sequential > 0


def test_small_files_are_counted_without_hidden_ones(section: StorageRead) -> None:
    assert section.small_file_count == SMALL_FILES
    assert section.small_file_bytes == SMALL_FILES * SMALL_BYTES
    assert section.small_files is not None
    assert section.small_files > 0


def test_names_folder_and_file_system(section: StorageRead) -> None:
    assert Path(section.path).is_dir()
    assert section.filesystem


def test_an_empty_folder_is_skipped_with_the_reason(tmp_path: Path) -> None:
    (runs,) = local_probes.measure(["storage_read"], limit=120, data=tmp_path)
    assert isinstance(runs, ProbeRuns)
    (run,) = runs.runs
    assert run.outcome == "skipped"
    assert "no files" in run.reason
    assert "--data" in run.reason


def test_hosts_read_at_the_same_time_each_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(b"\1" * LARGE_BYTES)
    (tmp_path / "only.jpg").write_bytes(b"\1" * SMALL_BYTES)
    *sections, runs = local_probes.measure(["tests.faulty.two_readers"], limit=120, data=tmp_path)
    assert isinstance(runs, ProbeRuns)
    assert [run.outcome for run in runs.runs] == ["completed"]
    read = [one for one in sections if isinstance(one, StorageRead)]
    assert [one.readers for one in read] == [2, 2]
    assert sorted(one.sequential_bytes for one in read) == [LARGE_BYTES, 2 * LARGE_BYTES]
    # One file for two readers: both read it.
    assert [one.small_file_count for one in read] == [1, 1]


def test_one_host_reads_alone(section: StorageRead) -> None:
    assert section.readers == 1
