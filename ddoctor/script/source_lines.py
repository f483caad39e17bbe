"""Lines of a user's source as evidence."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ddoctor.evidence.redaction import beginning
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.script.modules import Module
from ddoctor.script.names import source
from ddoctor.script.scopes import Scope

LONGEST = 300
"""Characters of a statement or an argument."""
At = Callable[[ast.AST, Scope], SourceLine]


class ModuleLines:
    """The statements of a module as text."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._statements: dict[int, ast.stmt] = {}
        for node in module.nodes.of(ast.stmt):
            # The innermost statement that begins at a line comes last.
            self._statements[node.lineno] = node

    def at(self, node: ast.AST, function: str) -> SourceLine:
        """The line of a node, with the text of its statement."""
        line: int = node.lineno  # type: ignore[attr-defined]
        return SourceLine(
            file=self._module.shown, line=line, text=self._text(node), function=function
        )

    def _text(self, node: ast.AST) -> str:
        first: int = node.lineno  # type: ignore[attr-defined]
        last = node.end_lineno or first  # type: ignore[attr-defined]
        own = self._statements.get(first)
        simple = own is not None and not hasattr(own, "body")
        if own is not None and simple:
            last = own.end_lineno or last
        if last == first or hasattr(node, "body"):
            text = self._module.lines[first - 1].strip()
        else:
            text = source(own if own is not None and simple else node)
        return cut(text)


def cut(text: str) -> str:
    return beginning(" ".join(text.split()), LONGEST)
