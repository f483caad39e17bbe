"""Sources that Python's parser refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ddoctor import engine
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.section import Evidence
from ddoctor.models import Confidence, Severity
from ddoctor.script import reader
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


def test_a_relative_import_without_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("from . import helper\nfrom ..above import other\n")
    monkeypatch.chdir(tmp_path)
    assert reader.read(Path("train.py"), [Path()]).files == ("train.py",)


def test_a_path_whose_origin_is_empty(script: Read) -> None:
    source = script(ddp(epoch='torch.save(model.state_dict(), "last.pt")'))
    calls = [
        replace(one, origins={"1": ("",)}) if one.name == "torch.save" else one
        for one in source.calls
    ]
    report = engine.examine(Evidence([replace(source, calls=tuple(calls))]), "doctor")
    assert report.crashed == ()
    assert "shared-filesystem-race" in {one.cause for one in report.findings}
