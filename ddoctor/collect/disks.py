"""The disks behind the folders that a training run uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import psutil

from ddoctor.evidence.host import Disk, Disks
from ddoctor.evidence.section import Unseen


def disks(working_folder: Callable[[], Path] = Path.cwd) -> Disks:
    """The file systems of working folder, temporary folder and Hugging Face cache, each once."""
    seen: dict[int, Disk] = {}
    unseen = []
    for role, find in {"working folder": working_folder, **FOLDERS}.items():
        try:
            folder = nearest(find())
            number, disk = folder.stat().st_dev, _disk(role, folder)
        except OSError as error:
            unseen.append(Unseen(what=f"the disk of the {role}", why=str(error)))
            continue
        first = seen.setdefault(number, disk)
        if first is not disk:
            seen[number] = msgspec.structs.replace(first, roles=(*first.roles, role))
    return Disks(disks=tuple(seen.values()), unseen=tuple(unseen))


def nearest(folder: Path) -> Path:
    """The folder, or its nearest existing parent, where it would be created."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def hugging_face_cache() -> Path:
    """The download folder of huggingface_hub (``huggingface_hub.constants``)."""
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    hugging_face = os.environ.get("HF_HOME", os.path.join(caches, "huggingface"))
    older = os.environ.get("HUGGINGFACE_HUB_CACHE", os.path.join(hugging_face, "hub"))
    return Path(os.path.expanduser(os.environ.get("HF_HUB_CACHE", older))).absolute()


def temporary_folder() -> Path:
    """The choice of ``tempfile.gettempdir``, without the test file that it writes."""
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return next((path for name in named if name and (path := Path(name)).is_dir()), Path("/tmp"))


FOLDERS: Mapping[str, Callable[[], Path]] = {
    "temporary folder": temporary_folder,
    "Hugging Face cache": hugging_face_cache,
}


def _disk(role: str, folder: Path) -> Disk:
    state = os.statvfs(folder)
    unit = state.f_frsize
    resolved = folder.resolve()
    mounts = reversed(psutil.disk_partitions(all=True))  # the latest of several at one place counts
    holding = [one for one in mounts if resolved.is_relative_to(one.mountpoint)]
    mount = max(holding, key=lambda one: len(Path(one.mountpoint).parts), default=None)
    return Disk(
        roles=(role,),
        path=str(folder),
        mount=mount.mountpoint if mount else "/",
        device=mount.device if mount else "",
        filesystem=mount.fstype if mount else "",
        size=state.f_blocks * unit,
        free=state.f_bavail * unit,
        used=(state.f_blocks - state.f_bfree) * unit,
        files=state.f_files or None,
        files_free=state.f_favail if state.f_files else None,
        writable=not state.f_flag & os.ST_RDONLY,
    )


COLLECTORS = (disks,)
