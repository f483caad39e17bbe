"""Text, YAML and JSON that a launch names: bounded, with the line of each value."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.opening import without_waiting

MOST_BYTES = 4 * 2**20
MOST_VALUES = 10_000
MOST_DEPTH = 20


@dataclass(frozen=True)
class Key:
    """A key of a file, with the keys around it."""

    name: str
    around: tuple[str, ...]
    line: int
    value: str
    """Empty: it is no scalar."""

    def setting(self, file: str) -> Setting:
        """It, and the file in which it is."""
        return Setting(name=self.name, value=self.value, file=file, line=self.line)


class ReadOnce(DoctorError):
    """A pipe: what is read from it is gone for the launch itself."""


def is_there(path: Path) -> bool:
    """Whether it is a file here; what cannot be the name of one is none."""
    # Of Python below 3.14, pathlib raises for a name that is too long.
    return os.path.isfile(path)


def text(path: Path, name: str) -> str:
    """The text of a file.

    Raises:
        DoctorError: it cannot be read, or is no text.
    """
    if os.path.exists(path) and not os.path.isdir(path) and not is_there(path):
        raise ReadOnce(f"cannot read {name}: it is no regular file")
    try:
        with open(path, "rb", opener=without_waiting) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise DoctorError(f"cannot read {name}: {error.strerror}") from error
    except ValueError as error:
        raise DoctorError(f"cannot read {name}: {error}") from error
    if len(content) > MOST_BYTES:
        raise DoctorError(f"cannot read {name}: it is larger than {MOST_BYTES >> 20} MiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DoctorError(f"cannot read {name}: it is not UTF-8") from error


def documents(path: Path, name: str) -> list[Any]:
    """The nodes of the YAML documents in a file, which may be JSON: nothing is built of them.

    Raises:
        DoctorError: it cannot be read, or is no YAML.
    """
    import yaml

    content = text(path, name)
    try:
        return [*yaml.compose_all(content, Loader=_loader())]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}" if mark is not None else ""
        kind = "JSON" if name.endswith(".json") else "YAML"
        raise DoctorError(f"{name}{where} is no {kind}: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise DoctorError(f"{name} is no YAML: {why}") from error


def _loader() -> Any:
    import yaml

    # The one in C is twenty times as fast.
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def settings(path: Path, name: str, prefix: str = "") -> list[Setting]:
    """All values of a YAML or JSON file, named by their keys: ``fsdp_config.fsdp_offload_params``.

    ``prefix``: what comes before each name.

    Raises:
        DoctorError: as ``documents``, or there are too many values.
    """
    found: list[Setting] = []
    for node in documents(path, name):
        # Aliases of aliases stand for more values than any memory holds.
        for count, (keys, value, line) in enumerate(_values(node, (), MOST_DEPTH)):
            if count >= MOST_VALUES or len(found) >= MOST_VALUES:
                raise DoctorError(f"{name} has more than {MOST_VALUES} values")
            if value is not None:
                key = prefix + ".".join(keys)
                found.append(Setting(name=key, value=value, file=name, line=line))
    return found


def keys(path: Path, name: str) -> list[Key]:
    """The keys of all mappings in a YAML or JSON file, as far as ``MOST_VALUES``.

    Raises:
        DoctorError: as ``documents``.
    """
    found = (key for node in documents(path, name) for key in _keys(node, (), MOST_DEPTH))
    return [*islice(found, MOST_VALUES)]


def _keys(node: Any, around: tuple[str, ...], depth: int) -> Iterator[Key]:
    for key, value in node.value if node.id == "mapping" and depth else ():
        if key.id == "scalar" and key.value == "<<":
            yield from _keys(value, around, depth - 1)
        elif key.id == "scalar":
            text = value.value if value.id == "scalar" else ""
            yield Key(key.value, around, key.start_mark.line + 1, text)
            yield from _keys(value, (*around, key.value), depth - 1)


def _values(
    node: Any, keys: tuple[str, ...], depth: int
) -> Iterator[tuple[tuple[str, ...], str | None, int]]:
    """Each value with its keys and its line, and None for each mapping or sequence that has some.

    An alias stands for its values again.
    """
    line = node.start_mark.line + 1
    if depth < 0:
        return
    if node.id != "scalar":
        yield keys, None, line
    if node.id == "mapping":
        for key, value in node.value:
            if key.id == "scalar":
                yield from _values(value, (*keys, key.value), depth - 1)
    elif node.id == "sequence":
        if all(one.id == "scalar" for one in node.value):
            yield keys, ",".join(one.value for one in node.value), line
        else:
            for number, one in enumerate(node.value):
                yield from _values(one, (*keys, str(number)), depth - 1)
    else:
        # As a file of Python's or accelerate's writes it.
        yield keys, "null" if node.tag.endswith(":null") else node.value, line
