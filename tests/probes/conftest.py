"""All probes, measured once for real: torchrun and two ranks on gloo, wherever the tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.cluster import local_probes
from ddoctor.evidence.section import Evidence
from ddoctor.probing import catalog

LARGE_BYTES = 20 * 2**20
SMALL_BYTES = 1000
SMALL_FILES = 40


@pytest.fixture(scope="session")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """What the probes measured here, on a data folder of known content."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "large.bin").write_bytes(b"\1" * LARGE_BYTES)
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "file").write_bytes(b"\1" * SMALL_BYTES)
    (folder / "small").mkdir()
    for number in range(SMALL_FILES):
        (folder / "small" / f"{number}.jpg").write_bytes(b"\1" * SMALL_BYTES)
    before = _state(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        collected = Evidence(local_probes.measure(catalog.usual(), limit=200, data=folder))
    assert _state(folder) == before, "a probe only reads"
    return collected


def _state(folder: Path) -> dict[Path, tuple[int, int]]:
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))
    }
