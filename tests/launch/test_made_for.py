"""Texts of a project that say for which batch its learning rate was chosen."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddoctor.launch import made_for
from ddoctor.launch.option_source import options_of
from tests.launch.reviewed import causes, reviewed
from tests.script.sources import LOADER, ddp

CAUSE = "effective-batch-lr-mismatch"
OPTIONS = """
import argparse

def options():
    parser = argparse.ArgumentParser({about!r})
    parser.add_argument("--config", default="net.yaml")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02, help={help!r})
    return parser.parse_args()
"""
STARTS = "torchrun --nproc-per-node 4 train.py"


def script(help: str = "", more: str = "") -> str:
    return ddp(head=OPTIONS.format(help=help, about="a net") + more)


def pairs(found: Sequence[object]) -> Sequence[str]:
    return [one.value for one in found]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "batch", "rate"),
    [
        ("# lr was tuned for a global batch of 512\nlr: 3e-4\n", "512", "3e-4"),
        ("lr: 3e-4  # for a total batch size of 64\n", "64", "3e-4"),
        (
            "# 4 x A100, total batch 4 * 2 * 8 = 64\n# lr 1e-5 was picked for it\nd: 3\n",
            "64",
            "1e-05",
        ),
        ("learning_rate = 0.1  # swept with batch 128 on a single V100\n", "128", "0.1"),
        ("# picked on 8 GPUs, 16 clips each: lr 0.1 for a batch of 128\nd: 3\n", "128", "0.1"),
        ("# picked on 8 GPUs with a batch of 128: lr 0.1\nd: 3\n", "1024", "0.1"),
        ("# Chosen on one A100 with batch 96: it fell fastest\nlr: 2e-3\n", "96", "2e-3"),
    ],
)
def test_comments(text: str, batch: str, rate: str) -> None:
    assert pairs([*made_for.of_file(text, "net.yaml")]) == [batch, rate]


@pytest.mark.parametrize(
    "text",
    [
        "# lr scales with the total batch of 512\nlr: 3e-4\n",
        "lr: 3e-4  # 64 samples per GPU\n",
        "# fits one A100 with batch 96\nlr: 2e-3\n",
        "# lr 1e-5 or lr 2e-5, chosen for a total batch of 64\nd: 3\n",
        "# fine-tuned with lr 1e-5 and a total batch of 64\nd: 3\n",
        "# lr 1e-5 was picked for batch 8 on 4 GPUs or 8 GPUs\nd: 3\n",
        "# the total batch is 64\nd: 3\n\nlr: 3e-4\n",
        "# total batch 64, lr 3e-4. The script was selected to be simple.\nd: 3\n",
        "# lr was tuned for a global batch of 512\n\nd: 3\nlr: 3e-4\n",
    ],
)
def test_comments_that_say_something_else(text: str) -> None:
    assert [*made_for.of_file(text, "net.yaml")] == []


def test_help_and_docstrings() -> None:
    tree = ast.parse(OPTIONS.format(help="chosen for a global batch of 1024", about=""))
    assert pairs([*made_for.of_source(tree, options_of(tree), "a.py")]) == ["1024", "0.02"]
    tree = ast.parse('"""Small nets.\n\nlr 0.5 was tuned on two GPUs with batch 16."""\n')
    assert pairs([*made_for.of_source(tree, options_of(tree), "a.py")]) == ["32", "0.5"]


README = """\
# Nets

We searched on a single H100:

    python train.py

There, lr = 0.02 with batch size 32 gave the best result. The rate was selected for that batch.

On the cluster we use 4 GPUs.
"""


@pytest.mark.parametrize("arguments", ["", "--lr 0.02", "--batch_size 64"])
def test_a_readme(tmp_path: Path, arguments: str) -> None:
    found = reviewed(tmp_path, f"{STARTS} {arguments}", script(), README_md=README)
    because = next(one.because for one in found if one.cause == CAUSE)
    assert "is for 32 samples in a step (README.md:3)" in because


@pytest.mark.parametrize(
    ("arguments", "readme", "more"),
    [
        ("--lr 0.04", README, ""),
        ("--batch_size 8", README, ""),
        ("", README.replace("was selected", "scales, and was selected"), ""),
        ("", README.replace("searched", "worked").replace("was selected", "is good"), ""),
        ("", README, "each = args.batch_size // dist.get_world_size()\n"),
        ("", README, "rate = args.lr * torch.cuda.device_count() ** 0.5\n"),
        ("", README, "parser.add_argument('--global_batch', default=32)\n"),
    ],
)
def test_a_readme_that_fits(tmp_path: Path, arguments: str, readme: str, more: str) -> None:
    found = causes(tmp_path, f"{STARTS} {arguments}", script(more=more), README_md=readme)
    assert CAUSE not in found


def test_help_of_an_option(tmp_path: Path) -> None:
    assert CAUSE in causes(tmp_path, STARTS, script("the rate for a total batch of 32"))
    assert CAUSE not in causes(tmp_path, STARTS, script("the rate for a total batch of 128"))
    assert CAUSE not in causes(tmp_path, STARTS, script("the rate of SGD"))


@pytest.mark.parametrize(
    ("rate", "comment", "wrong"),
    [
        ("1e-3", "for a total batch of 16", True),
        ("RATE", "for a total batch of 16", True),
        ("1e-3", "good for batch size 16 on a single GPU", True),
        ("1e-3", "for a total batch of 64", False),
        ("1e-3", "tuned with batch size 16", False),
        ("1e-3", "of batch 16 on one GPU, scaled by the ranks", False),
        ("OTHER", "for a total batch of 16", False),
    ],
)
def test_a_comment_beside_the_optimizer(
    tmp_path: Path, rate: str, comment: str, wrong: bool
) -> None:
    head = f"RATE = 1e-3  # {comment}\nOTHER = 1e-3 if fast else 2e-3\n"
    made = f"optimizer = torch.optim.AdamW(model.parameters(), lr={rate})"
    loader = LOADER.replace("(data, ", "(data, batch_size=16, ")
    source = ddp(head=head, loader=f"{loader}{made}  # {comment}\n")
    assert (CAUSE in causes(tmp_path, STARTS, source)) is wrong


BY_ATTRIBUTE, BY_NAME = "import config\n", "from config import clips, rate\n"


@pytest.mark.parametrize(
    ("imports", "ranks", "more", "wrong"),
    [
        (BY_ATTRIBUTE, 4, "", True),
        (BY_NAME, 4, "", True),
        (BY_ATTRIBUTE, 8, "", False),
        (BY_NAME, 8, "", False),
        # The source does not show which rate it becomes.
        (BY_ATTRIBUTE, 4, "config.rate = float(os.environ['RATE'])\n", False),
        (BY_ATTRIBUTE, 4, "config.clips = int(os.environ['CLIPS'])\n", False),
    ],
)
def test_a_module_of_settings(
    tmp_path: Path, imports: str, ranks: int, more: str, wrong: bool
) -> None:
    of = "config." if imports == BY_ATTRIBUTE else ""
    loader = LOADER.replace("(data, ", f"(data, batch_size={of}clips, ")
    made = f"optimizer = torch.optim.SGD(model.parameters(), lr={of}rate)\n"
    settings = "# 8 GPUs, 16 clips on each: rate 0.1 for a batch of 128\nrate = 0.1\nclips = 16\n"
    command = f"torchrun --nproc-per-node {ranks} train.py"
    source = ddp(head=imports + more, loader=loader + made)
    found = reviewed(tmp_path, command, source, gpus=8, config_py=settings)
    because = [one.because for one in found if one.cause == CAUSE]
    assert bool(because) is wrong
    assert all("0.1 (train.py:" in one and "(config.py:1)" in one for one in because)


SETTINGS = "# RATE 0.4 was tuned for a total batch size of 128\nRATE = 0.4\nCLIPS = 16\n"
OF_CLASS = "from conf.settings import Settings\n"
FIELDS = """
class Settings:
    rate: float = 0.4  # chosen for a global batch size of 128
    clips: int = 16
"""


@pytest.mark.parametrize(
    ("imports", "text", "rate", "clips"),
    [
        ("from conf import settings\n", SETTINGS, "settings.RATE", "settings.CLIPS"),
        ("from conf.settings import RATE, CLIPS\n", SETTINGS, "RATE", "CLIPS"),
        (f"{OF_CLASS}settings = Settings()\n", FIELDS, "settings.rate", "settings.clips"),
        (OF_CLASS, FIELDS, "Settings.rate", "Settings.clips"),
    ],
)
@pytest.mark.parametrize("ranks", [4, 8])
def test_a_package_of_settings(
    tmp_path: Path, imports: str, text: str, rate: str, clips: str, ranks: int
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "settings.py").write_text(text)
    loader = LOADER.replace("(data, ", f"(data, batch_size={clips}, ")
    made = f"optimizer = torch.optim.SGD(model.parameters(), lr={rate})\n"
    command = f"torchrun --nproc-per-node {ranks} train.py"
    found = causes(tmp_path, command, ddp(head=imports, loader=loader + made), gpus=8)
    assert (CAUSE in found) is (ranks == 4)


@pytest.mark.parametrize("of", ["Settings", "settings"])
def test_a_field_that_is_set_later(tmp_path: Path, of: str) -> None:
    head = f"{FIELDS}\nsettings = Settings()\n{of}.rate = float(os.environ['RATE'])\n"
    loader = LOADER.replace("(data, ", f"(data, batch_size={of}.clips, ")
    made = f"optimizer = torch.optim.SGD(model.parameters(), lr={of}.rate)\n"
    found = causes(tmp_path, STARTS, ddp(head=f"import os\n{head}", loader=loader + made))
    assert CAUSE not in found
