"""Finds a script's own modules through its imports, and parses them; nothing is run."""

from __future__ import annotations

import ast
import io
import os
import sysconfig
import tokenize
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddoctor.evidence.opening import without_waiting
from ddoctor.evidence.section import Unseen
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.source_text import Nodes, levels, nodes, syntax_tree

MOST_FILES = 200
MOST_BYTES = 2 * 2**20
"""Of all files together: 50,000 lines, which take a few seconds."""
DEEPEST = 200
"""Expressions and statements within each other; a hundred branches of ``elif`` are as many."""
MOST_REASONS = 20
"""Files that could not be read are named up to this number."""
MAIN = "__main__"
LIBRARIES = ("site-packages", "dist-packages")
STANDARD = Path(sysconfig.get_paths()["stdlib"]).resolve()


@dataclass(frozen=True, eq=False)
class Module:
    """A file of the user's code."""

    path: Path
    name: str
    """Its full name for an import; ``MAIN``: the script."""
    shown: str
    """Its path for a reader: from the folder that it was found in."""
    tree: ast.Module
    nodes: Nodes
    lines: Sequence[str]

    @property
    def package(self) -> str:
        """The package whose names a relative import begins with."""
        inside = self.path.name == "__init__.py"
        return self.name if inside else self.name.rpartition(".")[0]


@dataclass
class Modules:
    """The files that were read, the script first, and why others were not."""

    found: list[Module] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    broken: list[SourceLine] = field(default_factory=list)
    """Where the source is no Python."""
    _left: int = MOST_BYTES

    @classmethod
    def read(cls, script: Path, folders: Sequence[Path]) -> Modules:
        """Parse the script and what it imports, the nearest modules first."""
        every = cls()
        roots = list(dict.fromkeys([script.parent, *folders]))
        ahead = deque([(script, MAIN, script.parent)])
        known = {_resolved(script)}
        while ahead:
            path, name, root = ahead.popleft()
            if len(every.found) == MOST_FILES:
                every._miss("more modules", f"only {MOST_FILES} files are read")
                break
            module = every._parse(path, name, root)
            if module is None:
                continue
            every.found.append(module)
            for wanted in _imported(module):
                for found in _files(wanted, roots):
                    if (resolved := _resolved(found[0])) not in known:
                        known.add(resolved)
                        ahead.append(found)
        return every

    def _parse(self, path: Path, name: str, root: Path) -> Module | None:
        shown = path.relative_to(root).as_posix()
        try:
            with open(path, "rb", opener=without_waiting) as file:
                source = file.read(self._left + 1)
            if len(source) > self._left:
                self._miss(shown, f"the files have more than {MOST_BYTES >> 20} MiB together")
                return None
            text, tree = _parsed(source)
            every = _nodes(tree)
        except SyntaxError as error:
            line = error.lineno or 1
            self._miss(f"{shown}:{line}", f"a syntax error: {error.msg}")
            self.broken.append(SourceLine(file=shown, line=line, text=(error.text or "").strip()))
        except (RecursionError, MemoryError):
            self._miss(shown, "its expressions are nested too deeply")
        except ValueError as error:
            self._miss(shown, str(error).partition("\n")[0])
        except OSError as error:
            self._miss(shown, error.strerror or type(error).__name__)
        else:
            self._left -= len(source)
            return Module(path, name, shown, tree, every, text.split("\n"))
        return None

    def _miss(self, what: str, why: str) -> None:
        if len(self.unseen) < MOST_REASONS:
            self.unseen.append(Unseen(what=what, why=why))


def _parsed(source: bytes) -> tuple[str, ast.Module]:
    """The text of a file and its tree.

    Raises:
        SyntaxError: it is no Python, or names no known encoding.
        ValueError: it contains null bytes, or other bytes than its encoding has.
        RecursionError, MemoryError: it is nested too deeply.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    try:
        # Python's own ends of lines, and no others, so that line numbers agree.
        text = io.TextIOWrapper(io.BytesIO(source), encoding).read()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not {encoding}: byte {error.start} cannot be read") from error
    return text, syntax_tree(text)


def _nodes(tree: ast.Module) -> Nodes:
    """All nodes, the outer ones first.

    Raises:
        RecursionError: there are more than ``DEEPEST`` within each other.
    """
    if len(levels(tree)) > DEEPEST:
        raise RecursionError
    return nodes(tree)


def _imported(module: Module) -> Iterator[str]:
    """The full names of the modules that it may import."""
    for node in module.nodes.of(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base = base_of(node, module)
            if base or node.level:
                yield base
                yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def base_of(node: ast.ImportFrom, module: Module) -> str:
    """The module whose names ``from … import`` takes, with the package of a relative one."""
    if not node.level:
        return node.module or ""
    package = module.package.split(".")
    above = package[: len(package) - (node.level - 1)]
    return ".".join(filter(None, [*above, node.module or ""]))


def _files(name: str, roots: Sequence[Path]) -> Iterator[tuple[Path, str, Path]]:
    """The file of a module, after those of its packages; none: it is not the user's."""
    # A relative import of the top level, which has no package, names none.
    parts = name.split(".") if name else []
    for root in roots:
        found = []
        for count in range(1, len(parts) + 1):
            path = root.joinpath(*parts[:count])
            for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
                if os.path.isfile(file) and not _is_library(file):
                    found.append((file, ".".join(parts[:count]), root))
                    break
        if found:
            yield from found
            return


def _is_library(path: Path) -> bool:
    resolved = _resolved(path)
    installed = any(part in LIBRARIES for part in resolved.parts)
    return installed or resolved.is_relative_to(STANDARD)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path
