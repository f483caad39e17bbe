"""Writes the report to files and stdout, and shows progress until then."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddoctor import console
from ddoctor.characters import tamed
from ddoctor.errors import DoctorError
from ddoctor.evidence.opening import without_waiting
from ddoctor.evidence.section import Evidence
from ddoctor.models import Report

STDOUT = Path("-")
FIT, UNFIT = "fit.txt", "unfit.txt"


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The requested output files, checked for write access before the work starts.

    Raises:
        DoctorError: a path cannot be written, two of them are the same file, or one is read.
    """

    json: Path | None = None
    markdown: Path | None = None
    html: Path | None = None
    bundle: Path | None = None
    hosts: Path | None = None
    """Folder for the lists of fit and unfit hosts."""
    reads: Sequence[Path] = ()
    """The files that the command itself reads."""

    def __post_init__(self) -> None:
        lists = [self.hosts / name for name in (FIT, UNFIT)] if self.hosts is not None else []
        asked = [path for path in (self.json, self.markdown, self.html, self.bundle) if path]
        if asked.count(STDOUT) > 1:
            raise DoctorError("only one output can go to stdout (-): name a file for the others")
        if self.bundle == STDOUT:
            raise DoctorError("--bundle needs a file name, not -")
        files = [path for path in (*asked, *lists) if path != STDOUT]
        for path in files:
            _settle_writable(path)
        used = {_identity(path): "it is read" for path in self.reads}
        for path in files:
            one = _identity(path)
            if one in used:
                raise DoctorError(f"cannot write {path}: {used[one]}; name another file")
            if not _is_special(path):
                used[one] = "another output goes to it"

    def write(self, report: Report, evidence: Evidence) -> None:
        """Write the files; show the report on the terminal unless a file goes to stdout.

        Raises:
            DoctorError: one of them cannot be written; the others are.
        """
        with ExitStack() as outputs:
            # It calls them in reverse order, and all, even if one of them fails.
            if STDOUT not in vars(self).values():
                outputs.callback(_show, report, evidence)
            outputs.callback(self.write_files, report, evidence)

    def write_files(self, report: Report, evidence: Evidence) -> None:
        """Write the requested files.

        Raises:
            DoctorError: one of them cannot be written; the others are.
        """
        from ddoctor.evidence import bundle
        from ddoctor.report import fitness, html, markdown, schema

        with ExitStack() as outputs:
            if self.hosts is not None:
                for name, hosts in zip((FIT, UNFIT), fitness.lists(report, evidence), strict=True):
                    outputs.callback(put, self.hosts / name, "".join(f"{one}\n" for one in hosts))
            if self.html is not None:
                outputs.callback(put, self.html, html.render(report, evidence))
            if self.markdown is not None:
                outputs.callback(put, self.markdown, markdown.render(report, evidence))
            if self.json is not None:
                outputs.callback(put, self.json, schema.render(report))
            if self.bundle is not None:
                outputs.callback(bundle.write, self.bundle, evidence)


def _show(report: Report, evidence: Evidence) -> None:
    from rich.console import Console

    from ddoctor.report import terminal

    # Open MPI's ranks write to a terminal of its own, wherever it then writes.
    terminal_of_launcher = "OMPI_COMM_WORLD_RANK" in os.environ
    with _stdout():
        terminal.render(
            report, evidence, Console(force_terminal=False if terminal_of_launcher else None)
        )


@contextmanager
def _stdout() -> Iterator[None]:
    """Flush stdout at the end; DoctorError: it cannot be written, as on a full disk."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # Python would try again to write the rest at its exit.
        console.drop_stdout()
        raise DoctorError(f"cannot write to stdout: {error.strerror}") from error


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current activity, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("starting") as status:
        # A string would be taken for rich's markup.
        yield lambda text: status.update(Text(tamed(text)))


def _settle_writable(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        # Of a link to what is not there yet, the folder of its target counts.
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            raise DoctorError(f"cannot write {path}: there is no folder {folder}") from None
        writable = _may_write(folder)
    except OSError as error:
        raise DoctorError(f"cannot write {path}: {error.strerror}") from error
    else:
        if stat.S_ISDIR(mode):
            raise DoctorError(f"cannot write {path}: it is a folder")
        writable = _may_write(path)
    if not writable:
        raise DoctorError(f"cannot write {path}: permission denied")


def _may_write(path: Path) -> bool:
    # By default this asks for the real user, who may have other rights than this process.
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _identity(path: Path) -> object:
    """What two names of one file have in common."""
    try:
        found = path.stat()
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _is_special(path: Path) -> bool:
    """Whether it is a device or a pipe, to which several outputs may go."""
    return path.exists() and not path.is_file()


def put(path: Path, text: str) -> None:
    """Write a file, or to stdout for ``-``.

    Raises:
        DoctorError: the file cannot be written.
    """
    if path == STDOUT:
        with _stdout():
            sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    try:
        # A name in a list of hosts may be no UTF-8.
        with open(
            *(path, "w"), encoding="utf-8", errors="surrogateescape", opener=without_waiting
        ) as file:
            file.write(text)
    except OSError as error:
        raise DoctorError(f"cannot write {path}: {error.strerror}") from error
