from __future__ import annotations

from msgspec.structs import replace

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Cpus
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.network import Network
from ddoctor.evidence.section import Evidence
from ddoctor.report.details import Fields, details
from ddoctor.report.wording import Grid
from tests import healthy
from tests.report import sample


def fields(evidence: Evidence, host: str, section: str) -> Fields:
    return details(evidence, host, ())[section]


def test_numbers_are_folded_and_what_is_not_known_is_marked() -> None:
    _, evidence = sample.sick()
    cpus = fields(evidence, "node-1", Cpus.label())
    assert cpus["allowed"] == "0-191"
    assert cpus["quota"] == "–"
    assert cpus["numa"] == "none"
    assert cpus["load"] == "3.1, 2.8, 2.2"
    assert "unseen" not in cpus
    assert "host" not in cpus


def test_parts_become_a_table() -> None:
    _, evidence = sample.sick()
    variables = fields(evidence, "node-1", "environment")["variables"]
    assert isinstance(variables, Grid)
    assert variables.head[:2] == ("name", "value")
    assert [row[:2] for row in variables.rows] == [
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_SOCKET_IFNAMES", "eth0"),
    ]


def test_what_could_not_be_seen_is_told() -> None:
    _, evidence = sample.sick()
    unseen = fields(evidence, "node-1", "kernel")["unseen"]
    assert unseen == Grid(head=("what", "why"), rows=(("ACS of PCIe bridges", "needs root"),))


def test_many_measured_values_are_summed_up() -> None:
    _, evidence = sample.SAMPLES["slow-loader"]()
    (loading,) = evidence.all(Loading)
    waits = tuple(0.001 * wait for wait in range(1, 61))
    changed = replace(loading, loaders=(replace(loading.loaders[0], wait_seconds=waits),))
    grid = fields(evidence.with_sections(changed), "", "loading")["loaders"]
    assert isinstance(grid, Grid)
    (row,) = grid.rows
    assert row[grid.head.index("wait seconds")] == "60 from 0.001 to 0.06, median 0.0305"


def test_every_section_there_is_can_be_read() -> None:
    evidence = healthy.healthy()
    shown = details(evidence, "node-1", (Gpus,))
    assert Network.label() in shown
    assert Gpus.label() not in shown
    for rows in shown.values():
        assert rows
        for cell in _cells(rows):
            assert not set(cell) & set("{}"), cell


def _cells(rows: Fields) -> list[str]:
    cells = [value for value in rows.values() if isinstance(value, str)]
    grids = [value for value in rows.values() if isinstance(value, Grid)]
    assert all(len(line) == len(grid.head) for grid in grids for line in grid.rows)
    return [*cells, *(cell for grid in grids for line in grid.rows for cell in line)]
