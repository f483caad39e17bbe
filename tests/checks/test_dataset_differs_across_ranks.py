from __future__ import annotations

import pytest

from ddoctor.evidence.loading import Loading
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_loaders import loader_with

CAUSE = "dataset-differs-across-ranks"
Fields = dict[str, tuple[int, int]]


def loading(*ranks: Fields, replicas: int | None = 2) -> Loading:
    loaders = (
        loader_with(rank=rank, replicas=replicas, fields=fields, taken=60)
        for rank, fields in enumerate(ranks)
    )
    return Loading(loaders=tuple(loaders))


def test_files_in_another_order(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loading({"files": (1, 9)}, {"files": (2, 9)}))
    assert finding.severity is Severity.WARNING
    assert "has the same entries in another order on each rank: files" in finding.because


def test_labels_that_are_numbered_otherwise(findings: Findings) -> None:
    fields: tuple[Fields, Fields] = (
        {"files": (1, 9), "labels": (3, 7)},
        {"files": (1, 9), "labels": (4, 8)},
    )
    (finding,) = findings(CAUSE, loading(*fields))
    assert "differs in labels between ranks, and is the same in other fields" in finding.because


def test_numbers_that_may_be_drawn_for_each_item(findings: Findings) -> None:
    fields: tuple[Fields, Fields] = (
        {"files": (1, 9), "offsets": (3, 7)},
        {"files": (1, 9), "offsets": (4, 8)},
    )
    (finding,) = findings(CAUSE, loading(*fields))
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    "section",
    [
        loading({"files": (1, 9)}, {"files": (1, 9)}),
        loading({}, {}),
        loading({"files": (1, 9)}, {}),
        # Each rank draws its own data, or reads its own part.
        loading({"x": (1, 5), "y": (3, 7)}, {"x": (2, 6), "y": (4, 8)}),
        loading({"files": (1, 9)}, {"files": (2, 9)}, replicas=None),
        loading({"files": (1, 9)}, replicas=1),
    ],
)
def test_quiet(findings: Findings, section: Loading) -> None:
    assert findings(CAUSE, section) == ()
