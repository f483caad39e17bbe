"""The length of a LeRobot dataset that is on this machine.

Each of its frames is a sample. ``meta/info.json`` has their number, in the dataset's own folder
(``--dataset.root``), or in LeRobot's cache: ``HF_LEROBOT_HOME``, else ``lerobot`` in the cache of
Hugging Face (``HF_HOME``). Source: lerobot/utils/constants.py, lerobot/datasets/lerobot_dataset.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace as with_fields

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting
from ddoctor.launch import files

INFO = "meta/info.json"


def samples(settings: Sequence[Setting], folder: Path) -> Iterator[Setting]:
    """The number of samples, named ``samples``; nothing: the dataset is not here."""
    root, name = (_given(settings, f"arg.dataset.{key}") for key in ("root", "repo_id"))
    if root or name:
        path = (folder / root if root else _cache() / name) / INFO
        try:
            found = files.settings(path, INFO, "") if files.is_there(path) else ()
        except DoctorError:
            # LeRobot itself would refuse it, or download it again.
            return
        for one in found:
            if one.name == "total_frames":
                yield with_fields(one, name="samples")


def _given(settings: Sequence[Setting], name: str) -> str:
    return next((one.value for one in settings if one.name == name), "")


def _cache() -> Path:
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    return Path(os.environ.get("HF_LEROBOT_HOME") or Path(home) / "lerobot")
