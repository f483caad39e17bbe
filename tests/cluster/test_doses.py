"""A quick examination of hosts with several ranks each, and a burn, in one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddoctor.evidence import bundle
from ddoctor.evidence.cluster_probes import ClockOffsets, Pairs
from ddoctor.evidence.probes import Burn, ProbeRuns, StorageRead
from ddoctor.probing import catalog
from tests.cluster.conftest import MakeCluster

BURN_SECONDS = 3


@pytest.mark.ward
def test_a_quick_run_with_a_burn_on_two_sound_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(2)
    data = tmp_path / "data"
    data.mkdir()
    for number in range(20):
        (data / f"{number}.jpg").write_bytes(b"\1" * 1000)
    report, evidence = tmp_path / "report.json", tmp_path / "evidence.json"
    outputs = made.run(
        *made.torchrun,
        "--nproc-per-node=2",
        *("-m", "ddoctor.probe", "--quick", f"--burn={BURN_SECONDS}"),
        *(f"--data={data}", f"--json={report}", f"--bundle={evidence}"),
    )
    assert [output.exit_code for output in outputs] == [0, 0], outputs
    findings = json.loads(report.read_text())["findings"]
    assert [finding for finding in findings if finding["severity"] != "note"] == []

    seen = bundle.read(evidence)
    (runs,) = seen.all(ProbeRuns)
    outcomes = {run.probe: run.outcome for run in runs.runs}
    assert set(outcomes) == {*catalog.usual(), "burn"}
    needing_more = {"host_to_device": "skipped", "interfaces": "skipped"}
    assert outcomes == dict.fromkeys(outcomes, "completed") | needing_more

    (burn,) = seen.all(Burn)
    assert burn.seconds == BURN_SECONDS
    assert [len(rank.rates) for rank in burn.ranks] == [BURN_SECONDS] * 4
    assert [rank.wrong for rank in burn.ranks] == [0] * 4
    # The ranks of a host share its interface, over gloo: there is one rail.
    (pairs,) = seen.all(Pairs)
    assert [(end.place.rank, end.rail) for end in pairs.ends] == [(0, 0), (2, 0)]
    (clocks,) = seen.all(ClockOffsets)
    assert [offset.host for offset in clocks.offsets] == ["node-0", "node-1"]
    storage = seen.all(StorageRead)
    assert [(one.host, one.readers, one.small_file_count) for one in storage] == [
        ("node-0", 2, 10),
        ("node-1", 2, 10),
    ]
