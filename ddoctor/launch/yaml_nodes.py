"""Reads nodes of YAML, which keep the line of each value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddoctor.evidence.launch import Setting


def setting(name: str, node: Any, file: str) -> Setting:
    """The text of a node as a setting."""
    return Setting(name=name, value=text(node), file=file, line=line(node))


def items(node: Any) -> Iterator[tuple[str, Any]]:
    """The keys and nodes of a mapping; none: it is no mapping."""
    if node is not None and node.id == "mapping":
        yield from ((key.value, value) for key, value in node.value if key.id == "scalar")


def get(node: Any, name: str) -> Any:
    """The node of a key; None: there is none."""
    return next((value for key, value in items(node) if key == name), None)


def rows(node: Any) -> list[Any]:
    """The nodes of a list; none: it is no list."""
    return list(node.value) if node is not None and node.id == "sequence" else []


def text(node: Any) -> str:
    """The text of a value; empty: it has none."""
    return node.value if node is not None and node.id == "scalar" else ""


def line(node: Any) -> int:
    """The line of a node, from 1."""
    number: int = node.start_mark.line + 1
    return number


def text_rows(node: Any) -> tuple[int, ...]:
    """The line of each line of a text; one alone where YAML joins them.

    Source: yaml.org/spec/1.2.2, 8.1: the text of a block begins after the line of its ``|``.
    """
    if node.style == ">":
        return (line(node) + 1,)
    lines = len(text(node).splitlines()) if node.style == "|" else 0
    return tuple(range(line(node) + 1, line(node) + 1 + lines)) or (line(node),)
