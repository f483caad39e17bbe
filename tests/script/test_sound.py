"""Sound scripts of all styles have no finding, and not even a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.script import sources
from tests.script.conftest import Review


@pytest.mark.parametrize("style", sources.SOUND)
def test_nothing_is_found(review: Review, style: str) -> None:
    assert review(sources.SOUND[style]) == {}


def test_nothing_is_found_in_a_script_of_several_files(review: Review) -> None:
    whole = Path(__file__).with_name("sound.py").read_text()
    head, main = whole.split("def main")
    modules = {"package/__init__.py": "", "package/loop.py": head}
    start = head.split("def train_epoch")[0] + "from package.loop import train_epoch\n\ndef main"
    assert review(start + main, modules) == {}
