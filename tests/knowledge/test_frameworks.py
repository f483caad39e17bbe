"""The words of each framework: every argument exists in the framework itself."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Sequence

import pytest
from torch.nn.parallel import DistributedDataParallel

from ddoctor import knowledge
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.evidence.frameworks import Framework, KnownFrameworks

KNOWN = knowledge.load(KnownFrameworks)
SETTINGS = {
    "num_workers", "persistent_workers", "prefetch_factor", "find_unused_parameters",
    "broadcast_buffers", "save_every", "like_lengths", "reentrant", "accumulate", "even_batches",
}  # fmt: skip


@pytest.mark.parametrize(
    "row", [one for one in KNOWN.framework if one.modules], ids=lambda row: row.name
)
def test_each_argument_exists(row: Framework) -> None:
    package = row.modules[0].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    for text in row.writes.values():
        assert _unknown(row.modules, text.format(value=1)) == []


def _unknown(modules: Sequence[str], text: str) -> list[str]:
    """The arguments in this text that their class does not take."""
    unknown = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found = (getattr(importlib.import_module(one), node.func.id, None) for one in modules)
            takes = {*inspect.signature(next(one for one in found if one is not None)).parameters}
            if node.func.id == "DDPStrategy":  # it hands its keywords on
                takes |= {*inspect.signature(DistributedDataParallel).parameters}
            unknown += [str(one.arg) for one in node.keywords if one.arg not in takes]
    return unknown


def test_an_argument_that_does_not_exist_would_be_found() -> None:
    assert _unknown(["torch.utils.data"], "DataLoader(..., number_of_workers=1)") == [
        "number_of_workers"
    ]


def test_settings_have_one_name() -> None:
    assert {setting for row in KNOWN.framework for setting in row.writes} == SETTINGS


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["/x/site-packages/transformers/trainer.py", "/x/accelerate/accelerator.py"],
         "transformers"),
        (["/x/accelerate/accelerator.py", "/x/deepspeed/runtime/engine.py"], "accelerate"),
        (["/x/trl/trainer/sft_trainer.py", "/x/transformers/trainer.py"], "trl"),
        (["/x/lightning/pytorch/loops/fit_loop.py", "/x/lightning/fabric/wrappers.py"],
         "lightning"),
        (["/x/lightning/fabric/wrappers.py"], "fabric"),
        (["/x/deepspeed/runtime/engine.py"], "deepspeed"),
        # A model of transformers in a loop of one's own, an optimizer of theirs, a launcher.
        (["/x/transformers/models/bert/modeling_bert.py"], ""),
        (["/x/transformers/optimization.py"], ""),
        (["/x/accelerate/commands/launch.py"], ""),
        (["/x/lightning/pytorch/callbacks/callback.py"], ""),
        (["/home/me/train.py"], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_what_is_used(files: list[str], name: str) -> None:
    assert KNOWN.used(files) == name


def test_plain_words_where_the_framework_leaves_it_to_the_script() -> None:
    words = FrameworkWords(known=KNOWN)
    for framework in ("accelerate", ""):
        assert words.of(framework).written("num_workers", 4, "plain") == "plain"
    assert words.of("lerobot").written("num_workers", 4, "plain").startswith("lerobot-train")


def test_options_of_a_loader() -> None:
    words, options = FrameworkWords(known=KNOWN), {"num_workers": 4, "persistent_workers": True}
    plain = "DataLoader(…, num_workers=4, persistent_workers=True)  # train.py:7"
    assert words.of_loader("train.py:7", options) == plain
    # It has words for one of them only.
    assert words.of("lerobot").of_loader("train.py:7", options) == plain
    assert words.of("transformers").of_loader("", options) == (
        "TrainingArguments(..., dataloader_num_workers=4)\n"
        "TrainingArguments(..., dataloader_persistent_workers=True)"
    )
