"""The loops, branches and functions of a source file, and what is around a frame."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ddoctor.evidence.frames import Block, Frame
from ddoctor.evidence.source_text import syntax_tree
from ddoctor.loop_exits import Loop, decides

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = ast.If | Loop | Function


def parsed(lines: Sequence[str]) -> Sequence[Node]:
    """The loops, branches and functions of a file; empty: it cannot be read."""
    with suppress(SyntaxError, ValueError, RecursionError):
        every = ast.walk(syntax_tree("\n".join(line.rstrip("\n") for line in lines)))
        return [node for node in every if isinstance(node, Node)]
    return ()


def around(frame: Frame, nodes: Sequence[Node], lines: Sequence[str]) -> Iterator[Block]:
    """The loops and branches whose body contains the frame, the innermost last."""
    for node in nodes:
        first, last = node.body[0].lineno, node.body[-1].end_lineno or 0
        text = lines[node.lineno - 1].strip()
        # Whether a file is the script is no condition of it.
        here = first <= frame.line <= last and not text.startswith("if __name__")
        if here and not isinstance(node, Function):
            yield Block(
                file=frame.file,
                function=frame.function,
                loop=isinstance(node, Loop),
                decides=isinstance(node, Loop) and decides(node),
                text=text,
                line=node.lineno,
                end=node.end_lineno or last,
            )
