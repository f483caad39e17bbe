"""Whether a frame belongs to the user's code or to a library."""

from __future__ import annotations

import sysconfig
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType

from ddoctor.evidence import redaction
from ddoctor.recorder.stacks import AnyFrame

_LIBRARIES = tuple(
    {
        str(Path(path).resolve())
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(name))
    }
)
# Cython names its sources as they lay where a library was built: numpy/random/_common.pyx.
_OF_CYTHON = (".pyx", ".pxd", ".pxi")
_OURS = str(Path(__file__).resolve().parents[1])


@cache
def of_user(file: str) -> bool:
    """Whether a file is the user's code: outside of libraries, and a real file."""
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return False
    if file.endswith(_OF_CYTHON) and not Path(file).exists():
        return False
    path = str(Path(file).resolve())
    return not path.startswith((*_LIBRARIES, _OURS))


@cache
def of_ours(file: str) -> bool:
    """Whether a file is ddoctor's."""
    return str(Path(file).resolve()).startswith(_OURS)


def caller(frame: AnyFrame | None) -> AnyFrame | None:
    """The innermost frame of the user's code, starting at this frame."""
    while frame is not None and not of_user(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def shown(code: CodeType, line: int) -> str:
    """A place as reports show it: file:line."""
    return f"{short(code.co_filename)}:{line}"


@cache
def short(file: str) -> str:
    """A path relative to the run's folder, if it lies inside; without secrets."""
    path = Path(file)
    with suppress(ValueError, OSError):
        path = path.resolve().relative_to(Path.cwd())
    return redaction.text(str(path))
