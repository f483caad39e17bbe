"""Four hosts, one of which was set up otherwise."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from ddoctor.evidence import bundle
from ddoctor.evidence.cluster_probes import ClockOffsets
from tests.cluster.conftest import MakeCluster, outcome

PROBE = ("-m", "ddoctor.probe", "clock_skew", "--data=/usr")
# The mount is seen by this command alone.
OTHERWISE = ("sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"')


@pytest.mark.ward
def test_exactly_what_differs_on_one_of_four_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(4)
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    version = Path(spec.origin).with_name("version.py")
    other = tmp_path / "version.py"
    other.write_text(f"{version.read_text()}\n__version__ = '2.99.0+other'\n")
    files = (f"--json={tmp_path / 'report.json'}", f"--bundle={tmp_path / 'bundle.json'}")

    started = []
    for node in made.nodes:
        odd = node.name == "node-2"
        within = (*OTHERWISE, str(other), str(version)) if odd else ()
        arguments = (*PROBE, "--join-timeout=100" if odd else "--join-timeout=120", *files)
        threads = {"OMP_NUM_THREADS": "2" if odd else "1"}
        started.append(made.start(node, *within, *made.torchrun, *arguments, environment=threads))
    outputs = [outcome(process) for process in started]

    assert (tmp_path / "report.json").exists(), outputs
    report = json.loads((tmp_path / "report.json").read_text())
    (finding,) = (one for one in report["findings"] if one["cause"] == "environment-drift")
    assert finding["where"]["hosts"] == ["node-2"]
    told = {row["name"]: (row["value"], row["source"]) for row in finding["evidence"]}
    assert set(told) == {"torch", "OMP_NUM_THREADS", "arguments"}
    assert told["torch"] == ("2.99.0+other", "3 of 4 hosts")
    assert told["OMP_NUM_THREADS"] == ("2", "3 of 4 hosts")
    assert "--join-timeout=100" in told["arguments"][0]

    # The hosts share this machine's clock.
    (clocks,) = bundle.read(tmp_path / "bundle.json").all(ClockOffsets)
    assert {one.host for one in clocks.offsets} == {node.name for node in made.nodes}
    assert all(abs(one.offset) <= one.uncertainty + 1e-6 for one in clocks.offsets)
