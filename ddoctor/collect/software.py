"""Python, torch (queried in a separate process), NCCL libraries, installed packages."""

from __future__ import annotations

import json
import mmap
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from ddoctor import knowledge
from ddoctor.collect import programs
from ddoctor.evidence.known_software import Combinations
from ddoctor.evidence.section import Unseen
from ddoctor.evidence.software import NcclLibrary, Package, Software, Torch

NCCL = "libnccl.so"
NCCL_VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+)[\w.]*\+cuda(\d+\.\d+)")
LDCONFIG_SECONDS = 5.0


def software(limit: float = 25.0) -> Software:
    """The installed software; ``limit`` seconds for torch: cold network file systems are slow."""
    torch, torch_error = _torch(limit)
    cached, unseen = _linker_cache()
    found = (*_nccl_paths(torch), *(("ldconfig", path) for path in cached))
    return Software(
        python=platform.python_version(),
        torch=torch,
        torch_error=torch_error,
        nccl_libraries=tuple(_libraries(found)),
        packages=tuple(_packages()),
        unseen=unseen,
    )


def _torch(limit: float) -> tuple[Torch | None, str]:
    # Counting devices through NVML keeps CUDA uninitialised; a device that is hidden from a run
    # must not hide what torch was built for.
    environment = os.environ | {"PYTHONSAFEPATH": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        child = programs.run(
            [sys.executable, "-m", "ddoctor.collect.torch_build"],
            seconds=limit,
            environment=environment,
        )
    except subprocess.TimeoutExpired:
        return None, f"importing torch took longer than {limit:.0f} s"
    if child.returncode == 0:
        return msgspec.convert(json.loads(child.stdout.splitlines()[-1]), Torch), ""
    if child.returncode < 0:
        return None, f"importing torch ended the process with signal {-child.returncode}"
    lines = child.stderr.strip().splitlines()
    return None, lines[-1] if lines else f"importing torch exited with {child.returncode}"


def _nccl_paths(torch: Torch | None) -> Iterator[tuple[str, Path]]:
    """NCCL libraries and what leads to them, in the order of the dynamic linker."""
    if torch is not None and torch.nccl_library is not None:
        yield "torch", Path(torch.nccl_library)
    for library in re.split(r"[ :]", os.environ.get("LD_PRELOAD", "")):
        if Path(library).name.startswith(NCCL):
            yield "LD_PRELOAD", Path(library)
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield from (("LD_LIBRARY_PATH", path) for path in Path(folder).glob(f"{NCCL}*"))
    if torch is not None and torch.path:
        home = Path(torch.path)
        yield from (("torch", path) for path in home.glob(f"lib/{NCCL}*"))
        wheel = home.parent / "nvidia/nccl/lib"
        yield from (("nvidia-nccl", path) for path in wheel.glob(f"{NCCL}*"))


def _linker_cache() -> tuple[list[Path], tuple[Unseen, ...]]:
    search = f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin"
    try:
        listed = programs.run(
            ["ldconfig", "-p"],
            seconds=LDCONFIG_SECONDS,
            environment=os.environ | {"PATH": search},
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], (Unseen(what="the dynamic linker's cache", why=str(error)),)
    targets = (line.partition("=> ") for line in listed.splitlines())
    paths = [Path(path) for _, arrow, path in targets if arrow]
    return [path for path in paths if path.name.startswith(NCCL)], ()


def _libraries(found: Iterable[tuple[str, Path]]) -> Iterator[NcclLibrary]:
    """One entry per file, however many links lead to it."""
    ways: dict[Path, list[str]] = {}
    for way, path in found:
        file = path.resolve()
        if file.is_file() and way not in ways.setdefault(file, []):
            ways[file].append(way)
    for file, its_ways in ways.items():
        told = _version_inside(file)
        yield NcclLibrary(
            path=str(file),
            found=tuple(its_ways),
            version=told[0] if told else None,
            cuda=told[1] if told else None,
        )


def _version_inside(file: Path) -> tuple[str, str] | None:
    """The versions of NCCL and its CUDA from strings in the file; nothing is loaded."""
    try:
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            match = NCCL_VERSION.search(text)
            return (match[1].decode(), match[2].decode()) if match else None
    except (OSError, ValueError):
        return None  # unreadable, or empty


def _packages() -> Iterator[Package]:
    for name in knowledge.load(Combinations).packages:
        with suppress(PackageNotFoundError):
            yield Package(name=name, version=version(name))


COLLECTORS = (software,)
