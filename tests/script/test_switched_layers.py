"""Layers that an option of the launch leaves out of the forward pass."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ddoctor import engine
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Severity
from tests.launched import launch
from tests.script.conftest import Read
from tests.script.sources import SET_UP, ddp

CAUSE = "ddp-unused-parameters"
NET = """
import torch

class Teller(torch.nn.Module):
    def __init__(self, width, words):
        super().__init__()
        self.grow = torch.nn.Linear(width, 4 * width)
        self.tell = torch.nn.Linear(4 * width, words)

    def forward(self, x):
        return self.tell(self.grow(x))

class Net(torch.nn.Module):
    def __init__(self, width=8, words=0, taps=None):
        super().__init__()
        self.words, self.taps = words, taps
        self.body = torch.nn.Linear(width, width)
        {make}

    def forward(self, x):
        y = self.body(x)
        {use}
"""
TELLS = "self.teller = Teller(width, words or 100)"
OF_WORDS = "return self.teller(y) if self.words > 0 else y"
RETURNS = "if not self.words:\n            return y\n        return self.teller(y)"
OF_TAPS = (
    "if self.taps == 'two' and self.training:\n            y = self.teller(y)\n        return y"
)
MAIN = """
import argparse
from nets import Net

parser = argparse.ArgumentParser()
parser.add_argument("--words", type=int, default=0)
parser.add_argument("--taps", default="one")
args = parser.parse_args()
"""
MADE = "Net(words=args.words, taps=args.taps)"
BY_CLASS = """
from dataclasses import dataclass
from nets import Net

@dataclass
class Config:
    words: int = 0
    taps: str = "one"

class Run:
    def __init__(self, config):
        self.net = Net(16, config.words, config.taps)

run = Run(Config())
"""


def told(
    script: Read, net: str, settings: Mapping[str, str], main: str = MAIN, made: str = MADE
) -> Finding | None:
    source = ddp(head=main, set_up=SET_UP.replace("Net()", made))
    starts = launch("torchrun", "train.py", {"ranks-per-host": "8", "hosts": "1", **settings})
    read = script(source, {"nets.py": net})
    report = engine.examine(Evidence([starts, read]), "doctor")
    assert report.crashed == ()
    return next((one for one in report.findings if one.cause == CAUSE), None)


@pytest.mark.parametrize(
    ("use", "settings"),
    [
        (OF_WORDS, {"arg.words": "0"}),
        (RETURNS, {"arg.words": "0"}),
        (OF_TAPS, {"arg.taps": "one"}),
        ("return self.teller(y) if self.taps else y", {"arg.taps": "none"}),
    ],
)
def test_an_option_leaves_a_layer_out(script: Read, use: str, settings: Mapping[str, str]) -> None:
    found = told(script, NET.format(make=TELLS, use=use), settings)
    assert found is not None
    assert found.severity is Severity.ERROR
    option = next(iter(settings)).removeprefix("arg.")
    assert f"{option}={settings[f'arg.{option}']} (the command line)" in found.because
    assert "nets.py:" in found.because
    assert "model.teller.requires_grad_(False)" in found.fixes[0].paste


@pytest.mark.parametrize(
    ("make", "use", "settings"),
    [
        # The option is on, or not known.
        (TELLS, OF_WORDS, {"arg.words": "50"}),
        (TELLS, OF_WORDS, {}),
        (TELLS, OF_TAPS, {"arg.taps": "two"}),
        # The layer is made only where it is used, or is used elsewhere as well.
        (TELLS + " if words else None", OF_WORDS, {"arg.words": "0"}),
        ("if words:\n            " + TELLS, OF_WORDS, {"arg.words": "0"}),
        (TELLS, "y = y + self.teller(y)\n        " + OF_WORDS, {"arg.words": "0"}),
        # Another value decides.
        (TELLS, "return self.teller(y) if x.ndim > 2 else y", {"arg.words": "0"}),
        (TELLS, "return self.teller(y) if self.words > 0 or x.ndim > 2 else y", {"arg.words": "0"}),
        (TELLS + "\n        self.teller.requires_grad_(words > 0)", OF_WORDS, {"arg.words": "0"}),
        # It has no parameters.
        ("self.teller = torch.nn.Softmax(-1)", OF_WORDS, {"arg.words": "0"}),
    ],
)
def test_quiet_where_the_layer_is_used(
    script: Read, make: str, use: str, settings: Mapping[str, str]
) -> None:
    assert told(script, NET.format(make=make, use=use), settings) is None


@pytest.mark.parametrize(("words", "left_out"), [("0", True), ("30", False)])
def test_the_default_of_a_class(script: Read, words: str, left_out: bool) -> None:
    main = BY_CLASS.replace("words: int = 0", f"words: int = {words}")
    net = NET.format(make=TELLS, use=RETURNS)
    assert (told(script, net, {}, main, "run.net") is not None) is left_out
    assert told(script, net, {"arg.config": "run.yaml"}, main, "run.net") is None
    assert told(script, net, {"arg.words": "7"}, main, "run.net") is None


@pytest.mark.parametrize(("made", "left_out"), [("Net(8)", True), ("Net(8, 20)", False)])
def test_a_value_that_the_source_gives(script: Read, made: str, left_out: bool) -> None:
    found = told(script, NET.format(make=TELLS, use=OF_WORDS), {}, made=made)
    assert (found is not None) is left_out
    assert found is None or "a constant of the source" in found.because


def test_an_option_of_a_section(script: Read) -> None:
    made = "Net(words=cfg.model['words'])"
    net = NET.format(make=TELLS, use=RETURNS)
    assert told(script, net, {"arg.model.words": "0"}, made=made) is not None
    assert told(script, net, {"arg.model.words": "9"}, made=made) is None
    changed = MAIN + "cfg.model.words = 3\n"
    assert told(script, net, {"arg.model.words": "0"}, changed, made) is None


@pytest.mark.parametrize(("words", "left_out"), [("0", True), ("9", False)])
def test_a_section_that_is_passed_as_a_whole(script: Read, words: str, left_out: bool) -> None:
    net = NET.format(make=TELLS, use=RETURNS)
    # The same name in another class is another layer.
    net += "\nclass Other:\n    def __init__(self):\n        self.teller = self.words = 1\n"
    found = told(script, net, {"arg.model.words": words}, made="Net(**cfg.model)")
    assert (found is not None) is left_out
