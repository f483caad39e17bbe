from __future__ import annotations

import pytest

from ddoctor.models import Severity
from tests.script.conftest import Review
from tests.script.conftest import review as review
from tests.script.conftest import script as script
from tests.script.sources import ACCELERATE, SOUND, ddp

AT_EXIT = "atexit.register(dist.destroy_process_group)"
CAUSE = "process-group-not-destroyed"


def test_no_line_destroys_it(review: Review) -> None:
    found = review(ddp().replace("dist.destroy_process_group()", ""))
    assert found.keys() == {CAUSE}
    assert found[CAUSE].severity is Severity.NOTE


@pytest.mark.parametrize(
    "source",
    [
        ddp(),
        ddp(head="import atexit").replace("dist.destroy_process_group()", AT_EXIT),
        ddp().replace("dist.destroy", "if dist.is_initialized():\n    dist.destroy"),
        ACCELERATE,
        SOUND["lightning"],
    ],
)
def test_it_is_quiet(review: Review, source: str) -> None:
    assert CAUSE not in review(source)
