"""The loops, branches, functions and contexts of a source file, and what is around a frame."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ddoctor.evidence.frames import OF_A_RANK, Block, Frame
from ddoctor.evidence.source_text import syntax_tree
from ddoctor.loop_exits import Loop, decides

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = ast.If | Loop | Function | ast.With
CHOOSES = re.compile(r"==|!=|\bif\b|\bnot\b|\bis_|\bin\b")
"""What makes a value differ by that: ``rank == 0``, ``Writer() if rank == 0 else None``."""


def parsed(lines: Sequence[str]) -> Sequence[Node]:
    """The loops, branches, functions and `with` statements of a file; empty: it cannot be read."""
    with suppress(SyntaxError, ValueError, RecursionError):
        every = ast.walk(syntax_tree("\n".join(line.rstrip("\n") for line in lines)))
        return [node for node in every if isinstance(node, Node)]
    return ()


def around(frame: Frame, nodes: Sequence[Node], lines: Sequence[str]) -> Iterator[Block]:
    """The loops and branches whose body contains the frame, the innermost last."""
    for node in nodes:
        if not _contains(node, frame) or isinstance(node, Function | ast.With):
            continue
        text = lines[node.lineno - 1].strip()
        # Whether a file is the script is no condition of it.
        if not text.startswith("if __name__"):
            yield Block(
                file=frame.file,
                function=frame.function,
                loop=isinstance(node, Loop),
                decides=isinstance(node, Loop) and decides(node),
                of_rank=isinstance(node, ast.If) and _by_the_rank(node.test, lines),
                text=text,
                line=node.lineno,
                end=node.end_lineno or node.body[-1].lineno,
            )


def contexts(frame: Frame, nodes: Sequence[Node]) -> Iterator[int]:
    """The lines of the ``with`` statements whose body contains the frame, the innermost last."""
    for node in nodes:
        # On a line with its body it cannot be known whether it is entered.
        entered = isinstance(node, ast.With) and node.lineno < node.body[0].lineno
        if entered and _contains(node, frame):
            yield node.lineno


def _contains(node: Node, frame: Frame) -> bool:
    return node.body[0].lineno <= frame.line <= (node.body[-1].end_lineno or 0)


def _by_the_rank(test: ast.expr, lines: Sequence[str]) -> bool:
    """Whether a branch asks for a rank, or for a value that a line of the file sets by it."""
    if OF_A_RANK.search(ast.unparse(test)):
        return True
    every = list(ast.walk(test))
    names = {node.id for node in every if isinstance(node, ast.Name)}
    names |= {node.attr for node in every if isinstance(node, ast.Attribute)}
    given = re.compile(
        rf"\s*(?:self\.)?(?:{'|'.join(map(re.escape, names))})\s*(?::[^=]+)?=([^=].*)"
    )
    values = (found[1] for line in lines if (found := given.match(line))) if names else ()
    return any(OF_A_RANK.search(value) and CHOOSES.search(value) for value in values)
