"""Files that one rank saves, and that all ranks read before they may be complete."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read
from tests.script.sources import ddp

SAVE = "if dist.get_rank() == 0:\n    torch.save(model.state_dict(), path)\n"
LOAD = "model.load_state_dict(torch.load(path, map_location='cpu'))"


def after(text: str) -> str:
    return ddp(epoch=text)


STORED = "def store(path, model):\n    torch.save(model.state_dict(), path)\n"
BY_ONE = (
    "def store(path, model):\n    if dist.get_rank() == 0:\n"
    "        torch.save(model.state_dict(), path)\n"
)
LOADED = "def restored(path):\n    return torch.load(path, map_location='cpu')\n"
STORE, RESTORE = "store(last, model)\n", "model.load_state_dict(restored(last))"


@pytest.mark.parametrize(
    "text",
    [
        STORED + LOADED + "if dist.get_rank() == 0:\n    " + STORE + RESTORE,
        BY_ONE + LOADED + STORE + RESTORE,
        BY_ONE + STORE + LOAD.replace("path", "last"),
        LOADED + SAVE.replace("path", "last") + RESTORE,
    ],
)
def test_in_functions(script: Read, text: str) -> None:
    (one,) = script(after(text)).read_too_early
    assert "last" in one.at.text
    assert "last" in one.save.text


@pytest.mark.parametrize(
    "text",
    [
        BY_ONE + "    dist.barrier()\n" + LOADED + STORE + RESTORE,
        BY_ONE + LOADED + STORE + "dist.barrier()\n" + RESTORE,
        BY_ONE + LOADED.replace("    r", "    dist.barrier()\n    r") + STORE + RESTORE,
        BY_ONE + LOADED + STORE + "model(inputs).sum().backward()\n" + RESTORE,
        BY_ONE + LOADED + STORE + RESTORE.replace("last", "first"),
        BY_ONE + LOADED + STORE + "if dist.get_rank() == 0:\n    " + RESTORE,
        STORED + LOADED + STORE + RESTORE,
    ],
)
def test_quiet_in_functions(script: Read, text: str) -> None:
    assert script(after(text)).read_too_early == ()


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
