"""What a factory may be, and return."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.errors import DoctorError
from ddoctor.memory_sweep.work import Shape, check_loss, checked, factory
from tests.memory_sweep import workloads

MODULE = "tests.memory_sweep.workloads"


def test_a_sound_one(tmp_path: Path) -> None:
    work = checked("train:make", factory(f"{MODULE}:dense", str(tmp_path))())
    assert work.loss(work.model, 3).shape == ()


def test_it_is_found_in_the_folder_after_all_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import queue
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "queue")
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong one')\n")
    (tmp_path / "my_training.py").write_text("import queue\ndef make():\n    return queue\n")
    made = factory("my_training:make", str(tmp_path))()
    assert getattr(made, "__file__", None) == queue.__file__


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "no_such_module:make",
            "no module no_such_module in /nowhere, and none installed",
        ),
        (f"{MODULE}:mak", f"{MODULE} has no function mak"),
        (f"{MODULE}:WIDE", f"{MODULE} has no function WIDE"),
    ],
)
def test_no_such_function_is_one_line(name: str, told: str) -> None:
    with pytest.raises(DoctorError, match=told):
        factory(name, "/nowhere")


def test_an_import_that_fails_within_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken_training.py").write_text("import no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        factory("broken_training:make", str(tmp_path))


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (workloads.no_tuple, "returned Linear: return a model, its optimizer, and"),
        (workloads.no_optimizer, "returned Linear, NoneType, NoneType: return a model"),
        (workloads.synchronised, "the forward pass of SyncBatchNorm waits for the other ranks"),
    ],
)
def test_what_cannot_be_trained_is_one_line(made: object, told: str) -> None:
    assert callable(made)
    with pytest.raises(DoctorError, match=told):
        checked("train:make", made())


def test_a_loss_of_so_many_tokens() -> None:
    one, other = checked("a:b", workloads.sequences()), checked("a:b", workloads.dense())
    check_loss(one, Shape(2, 16))
    check_loss(other, Shape(2))
    with pytest.raises(DoctorError, match="pass --sequence N"):
        check_loss(one, Shape(2))
    with pytest.raises(DoctorError, match="no third argument: define loss\\(model, samples,"):
        check_loss(other, Shape(2, 16))
