"""Files that one rank saves, and that all ranks read before they may be complete."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read
from tests.script.sources import ddp

SAVE = "if dist.get_rank() == 0:\n    torch.save(model.state_dict(), path)\n"
LOAD = "model.load_state_dict(torch.load(path, map_location='cpu'))"


def after(text: str) -> str:
    return ddp(epoch=text)


def test_read_without_waiting(script: Read) -> None:
    (one,) = script(after(SAVE + LOAD)).read_too_early
    assert one.at.text == LOAD
    assert "torch.save" in one.save.text


@pytest.mark.parametrize(
    "text",
    [
        SAVE + "dist.barrier()\n" + LOAD,
        SAVE + "accelerator.wait_for_everyone()\n" + LOAD,
        LOAD + "\n" + SAVE,
        SAVE + LOAD.replace("path", "first"),
        SAVE + "if dist.get_rank() == 0:\n    state = torch.load(path)",
        "torch.save(model.state_dict(), path)\n" + LOAD,
    ],
)
def test_quiet(script: Read, text: str) -> None:
    assert script(after(text)).read_too_early == ()
