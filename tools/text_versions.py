"""Find which releases print the texts of logs: ``python -m tools.text_versions torch``.

Downloads one wheel of each minor release, looks for the texts in it, and writes `since` and `until`
into the rows whose source names the package. A row of which no release has the text is listed and
left as it was: its text is put together while it is printed.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import msgspec

from ddoctor.reading.log_lines import DIGITS

KNOWLEDGE = Path(__file__).parent.parent / "ddoctor" / "knowledge"
PRINTABLE = re.compile(rb"[\t -~]{12,}")
"""Messages of a compiled library; what is shorter is mostly its code."""


@dataclass(frozen=True)
class Package:
    """Where the releases of a package are, and how the sources of the rows name it."""

    distribution: str
    names: tuple[str, ...]
    """What the sources begin with."""
    libraries: tuple[str, ...] = ()
    """Parts of the names of the compiled files that print something."""
    skipped: str = " "
    """A folder that prints nothing and has thousands of files."""


PACKAGES = {
    "torch": Package(
        "torch", ("torch", "c10", "aten", "caffe2"), ("libtorch_c", "libc10", "libtorch_python")
    ),
    "NCCL": Package("nvidia-nccl-cu12", ("NCCL",), ("libnccl",)),
    "accelerate": Package("accelerate", ("accelerate",)),
    "transformers": Package("transformers", ("transformers",), skipped="/models/"),
    "deepspeed": Package("deepspeed", ("deepspeed",)),
    "lightning": Package("lightning", ("lightning", "Lightning")),
    "trl": Package("trl", ("trl",)),
    "datasets": Package("datasets", ("datasets",)),
    "peft": Package("peft", ("peft",)),
    "bitsandbytes": Package("bitsandbytes", ("bitsandbytes",)),
    "composer": Package("composer", ("composer",)),
    "torchtune": Package("torchtune", ("torchtune",)),
    "streaming": Package("mosaicml-streaming", ("streaming",)),
}


def main() -> None:
    """Look at the releases of each package that is named, oldest first."""
    parser = argparse.ArgumentParser(prog="python -m tools.text_versions", description=__doc__)
    parser.add_argument("package", nargs="+", choices=PACKAGES)
    for name in parser.parse_args().package:
        _examine(PACKAGES[name])


def _examine(package: Package) -> None:
    rows = {row["name"]: row["holds"] for row in table_rows() if is_of(row["source"], package)}
    found: dict[str, list[str]] = {name: [] for name in rows}
    examined = []
    for release in _releases(package.distribution):
        with TemporaryDirectory() as folder:
            try:
                archive = _downloaded(package.distribution, release, Path(folder))
            except subprocess.CalledProcessError:
                print(f"{package.distribution} {release}: no wheel for this Python", flush=True)
                continue
            printed = texts(_files(archive, package))
        examined.append(release)
        for name, holds in rows.items():
            if any(folded(text) in printed for text in holds):
                found[name].append(release)
        print(f"{package.distribution} {release}: {len(printed) >> 10} KiB of text", flush=True)
    for name, releases in found.items():
        if not releases:
            print(f"in no release: {name}")
            continue
        last = releases[-1]
        _write(name, _minor(releases[0]), "" if last == examined[-1] else _minor(last))


def table_rows() -> Iterator[dict[str, Any]]:
    """The rows of all tables of texts."""
    for path in _tables():
        for rows in msgspec.toml.decode(path.read_bytes()).values():
            yield from rows


def is_of(source: object, package: Package) -> bool:
    """Whether the package alone prints the text."""
    firsts = [re.split(r"[/, ]", one.strip())[0] for one in str(source).split(";")]
    return all(first in package.names for first in firsts)


def folded(text: object) -> bytes:
    """A text as lines are searched for it: in lower case, without digits."""
    return str(text).lower().encode().translate(None, DIGITS)


def texts(files: Iterable[tuple[str, bytes]]) -> bytes:
    """All that files can print: strings of Python's syntax trees, printable bytes of libraries."""
    kept = []
    for name, data in files:
        if name.endswith(".py"):
            kept += [_folded(text) for text in _strings(data)]
        else:
            kept += [_folded(text) for text in PRINTABLE.findall(data)]
    return b"\n".join(kept)


def _folded(text: bytes) -> bytes:
    return text.lower().translate(None, DIGITS)


def _strings(source: bytes) -> Iterator[bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            # A template, or a file for another Python.
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield b"".join(_piece(one) for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _piece(node)


def _piece(node: ast.expr) -> bytes:
    # What stands for a value, no text holds.
    value = node.value if isinstance(node, ast.Constant) else "\0"
    return str(value).encode(errors="replace")


def _releases(distribution: str) -> list[str]:
    """The newest release of each minor version, oldest first."""
    told = _pip("index", "versions", distribution)
    every = re.search(r"Available versions: (.*)", told)
    assert every, told
    newest: dict[str, str] = {}
    for release in every[1].split(", "):
        if "+" not in release:
            newest.setdefault(_minor(release), release)
    return list(newest.values())[::-1]


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


def _downloaded(distribution: str, release: str, folder: Path) -> Path:
    _pip(
        *("download", "-q", "--no-deps", "--no-build-isolation", "--no-cache-dir"),
        *("-d", str(folder), f"{distribution}==={release}"),
    )
    (archive,) = folder.iterdir()
    return archive


def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _files(archive: Path, package: Package) -> Iterator[tuple[str, bytes]]:
    for name, data in _members(archive):
        compiled = any(part in name for part in package.libraries) and ".so" in name
        if (compiled or name.endswith(".py")) and package.skipped not in name:
            yield name, data.read()


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                with wheel.open(name) as file:
                    yield name, file
        return
    with tarfile.open(archive) as source:
        for member in source:
            if content := source.extractfile(member):
                yield member.name, content


def _write(name: str, since: str, until: str) -> None:
    for path in _tables():
        before = path.read_text()
        if (text := dated(before, name, since, until)) != before:
            path.write_text(text)


def dated(table: str, name: str, since: str, until: str) -> str:
    """The text of a table, with these releases in the row of this name behind its source."""
    lines = f'since = "{since}"\n' + (f'until = "{until}"\n' if until else "")
    head = rf'^name = "{re.escape(name)}"(?: #.*)?\n(?:.+\n)*?source = .*\n'
    row = re.compile(rf"({head})(?:(?:since|until) = .*\n)*", re.MULTILINE)
    return row.sub(lambda found: found[1] + lines, table)


def _tables() -> list[Path]:
    return [KNOWLEDGE / "log_patterns.toml", *sorted((KNOWLEDGE / "messages").glob("*.toml"))]


if __name__ == "__main__":
    main()
