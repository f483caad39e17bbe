"""Sources that Python's parser refuses."""

from __future__ import annotations

import pytest

from ddoctor import engine
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.section import Evidence
from ddoctor.models import Confidence, Severity
from tests.script.conftest import Read, Review
from tests.script.sources import ddp

BROKEN = "import torch\nfor batch in loader\n    train(batch)\n"
SOUND = [
    "import torch\nmatch torch.__version__:\n    case '2':\n        pass\n",
    "async def first(*items: int, last: int = 1) -> int:\n    return await items[last]\n",
    ddp(),
]


def test_a_script_that_does_not_parse(review: Review) -> None:
    finding = review(BROKEN)["script-error"]
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert "train.py:2 (`for batch in loader`) is no syntax of Python" in finding.because
    assert finding.because.endswith("the script stops at once")


def test_a_module_that_does_not_parse(review: Review) -> None:
    finding = review("import torch, data\n", {"data.py": BROKEN})["script-error"]
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert "data.py:2" in finding.because


@pytest.mark.parametrize("source", SOUND)
def test_what_parses(review: Review, source: str) -> None:
    assert "script-error" not in review(source)


def test_a_file_that_nothing_imports(review: Review) -> None:
    assert review("import torch\n", {"template.py": BROKEN}) == {}


def test_an_image_may_have_another_python(script: Read) -> None:
    settings = (Setting(name="elsewhere", value="docker", file="run.sh", line=1),)
    launch = Launch(command=(), launcher="torchrun", script="train.py", settings=settings)
    report = engine.examine(Evidence([launch, script(BROKEN)]), "doctor")
    assert "script-error" not in {one.cause for one in report.findings}
