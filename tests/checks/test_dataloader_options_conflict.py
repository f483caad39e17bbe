from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Confidence, Severity
from ddoctor.script.reader import read
from tests.conftest import Findings

CAUSE = "dataloader-options-conflict"
HEAD = """\
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        yield from share(rank, self.items)

"""


def script(folder: Path, lines: str) -> Path:
    (folder / "train.py").write_text(HEAD + lines)
    return folder / "train.py"


@pytest.mark.parametrize(
    ("loader", "removed"),
    [
        ("DataLoader(data, sampler=DistributedSampler(data), shuffle=True)", ", shuffle=True"),
        ("DataLoader(data, batch_sampler=BatchSampler(data), batch_size=8)", ", batch_size=8"),
        ("DataLoader(Stream(), batch_size=8, shuffle=True)", ", shuffle=True"),
        ("DataLoader(data, persistent_workers=True)", ", persistent_workers=True"),
        ("DataLoader(data, num_workers=0, prefetch_factor=4)", ", prefetch_factor=4"),
        (
            "DataLoader(Stream(), sampler=DistributedSampler(data))",
            ", sampler=DistributedSampler(data)",
        ),
    ],
)
def test_options_exclude_each_other(
    findings: Findings, tmp_path: Path, loader: str, removed: str
) -> None:
    (finding,) = findings(CAUSE, read(script(tmp_path, f"loader = {loader}\n"), ()))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert f"(`loader = {loader[:40]}" in finding.because
    assert finding.fixes[0].paste == f"loader = {loader.replace(removed, '')}"


def test_a_sampler_of_a_class(findings: Findings, tmp_path: Path) -> None:
    lines = """
class Data:
    def __init__(self, images):
        self.sampler = DistributedSampler(images)

    def loader(self):
        return DataLoader(self.images, sampler=self.sampler,
                          shuffle=True)
"""
    (finding,) = findings(CAUSE, read(script(tmp_path, lines), ()))
    assert "return DataLoader(self.images, sampler=self.sampler)" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "lines",
    [
        "sampler = DistributedSampler(data) if distributed else None\n"
        "DataLoader(data, sampler=sampler, shuffle=True)",
        "DataLoader(data, sampler=sampler, shuffle=True)",
        "DataLoader(data, sampler=DistributedSampler(data), shuffle=sampler is None)",
        "DataLoader(data, sampler=None, shuffle=True)",
        "DataLoader(data, sampler=DistributedSampler(data), shuffle=False)",
        "DataLoader(data, batch_sampler=BatchSampler(data), batch_size=1)",
        "DataLoader(Stream(), shuffle=False)",
        "DataLoader(Stream(), shuffle=None, num_workers=2, prefetch_factor=2)",
        "DataLoader(data, persistent_workers=True, num_workers=workers)",
        "DataLoader(data, persistent_workers=True, **options)",
        "DataLoader(data, persistent_workers=workers > 0)",
        "DataLoader(data, prefetch_factor=None)",
    ],
)
def test_quiet_where_one_of_both_may_be_off(findings: Findings, tmp_path: Path, lines: str) -> None:
    assert findings(CAUSE, read(script(tmp_path, lines), ())) == ()
