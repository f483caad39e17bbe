"""Which statements of a loop make what one of its lines reads, such as the batch of a model."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence

from ddoctor.blocks import Function, Node
from ddoctor.evidence.frames import Frame, Origin
from ddoctor.loop_exits import Loop

# A loop over numbers gives no batch.
COUNTS, NEXT = frozenset({"range", "count", "trange"}), frozenset({"next"})
TAKES = ("index_select", "take", "gather")
Statement = ast.stmt
# Whatever may have statements in it.
OF_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def origins(
    calls: Sequence[Frame], nodes_of: Callable[[str], Sequence[Node]]
) -> tuple[Origin, ...]:
    """Return the statements whose values the innermost of these frames reads, also indirectly.

    They are repeated with it: statements of the loops around it, or of its function. From the
    arguments of a function the way leads to its caller.
    """
    found: list[Origin] = []
    for frame in reversed(calls):
        statements = _of_a_frame(frame, nodes_of(frame.file))
        found += (_origin(node, frame) for node in statements)
        if not statements or not isinstance(statements[-1], Function):
            break
    return tuple(found)


def _of_a_frame(frame: Frame, nodes: Sequence[Node]) -> Sequence[Statement]:
    """The statements, and last the function if they need its arguments and nothing else."""
    around = [
        node
        for node in nodes
        if node.body[0].lineno <= frame.line <= (node.body[-1].end_lineno or 0)
    ]
    functions = [node for node in around if isinstance(node, Function)]
    function = max(functions, key=lambda node: node.lineno, default=None)
    first = function.lineno if function is not None else 0
    loops = [node for node in around if isinstance(node, Loop) and node.lineno > first]
    loops.sort(key=lambda node: -node.lineno)
    if not loops and function is None:
        return ()
    inner = loops[0] if loops else function
    every = list(_statements(inner)) if inner is not None else []
    at = [node for node in every if node.lineno <= frame.line <= _end(node)]
    wanted = set().union(*(_read(node) for node in at))
    found = _made([node for node in every if node not in at], wanted)
    # A function that only gets it may change it; what the loop only reads is no batch.
    made = wanted & _arguments(function) if function is not None else set()
    made = made.union(*(_written(node) & wanted for node in found))
    found += [node for node in every if node.lineno < frame.line and _passed(node) & made]
    given = any(_takes_a_batch(node) for node in found)
    for loop in loops[1:]:
        more = _made([one for one in _statements(loop) if one not in (*every, *at)], wanted)
        if loop in more and _takes_a_batch(loop):
            found, given = [*found, *more], True
    if function is not None and not given and wanted & _arguments(function):
        found.append(function)
    return found


def _made(statements: Sequence[Statement], wanted: set[str]) -> list[Statement]:
    """The statements that write a wanted variable; what they read is added to these."""
    found: list[Statement] = []
    while True:
        more = [node for node in statements if node not in found and _written(node) & wanted]
        if not more:
            return found
        found += more
        wanted |= set().union(*map(_read, more))


def _counts(node: Statement) -> bool:
    return isinstance(node, ast.For) and bool(_called([node.iter]) & COUNTS)


def _takes_items(node: Statement) -> bool:
    parts = (part for header in _header(node) for part in ast.walk(header))
    return any(
        (isinstance(part, ast.Subscript) and not _stores(part) and not _is_constant(part.slice))
        or (isinstance(part, ast.Attribute) and part.attr in TAKES)
        for part in parts
    )


def _is_constant(index: ast.expr) -> bool:
    """Whether it is a number or a name in quotes, as of a field of a batch."""
    return isinstance(index, ast.Constant)


def _takes_a_batch(node: Statement) -> bool:
    if isinstance(node, ast.For | ast.AsyncFor):
        return not _counts(node)
    return bool(_called(_header(node)) & NEXT)


def _called(parts: Iterable[ast.AST]) -> set[str]:
    """The names of the functions and methods that are called."""
    calls = (one.func for part in parts for one in ast.walk(part) if isinstance(one, ast.Call))
    names = (getattr(one, "id", None) or getattr(one, "attr", "") for one in calls)
    return {str(name) for name in names}


def _statements(node: Node) -> Iterator[Statement]:
    """A loop and the statements in it, or those of a function; not those of inner functions."""
    if isinstance(node, Loop):
        yield node
    for inner in node.body:
        yield from _within(inner)


def _within(node: ast.AST) -> Iterator[Statement]:
    if isinstance(node, ast.stmt):
        yield node
    if isinstance(node, OF_STATEMENTS) and not isinstance(node, Function | ast.ClassDef):
        for inner in ast.iter_child_nodes(node):
            yield from _within(inner)


def _header(node: Statement) -> Iterator[ast.AST]:
    """The parts of a statement that are no statements."""
    if not isinstance(node, Function | ast.ClassDef):
        parts = ast.iter_child_nodes(node)
        yield from (part for part in parts if not isinstance(part, OF_STATEMENTS))


def _end(node: Statement) -> int:
    """The last line of a statement, without the statements in it; of a function its head."""
    within = node.body if isinstance(node, Function) else _within(node)
    inner = (part.lineno for part in within if part is not node)
    return min(inner, default=(node.end_lineno or node.lineno) + 1) - 1


def _read(node: Statement) -> set[str]:
    """The variables that it reads, without the names of what it calls."""
    parts = [part for header in _header(node) for part in ast.walk(header)]
    called = {id(part.func) for part in parts if isinstance(part, ast.Call)}
    names = (_name(part) for part in parts if id(part) not in called and not _stores(part))
    read = {name for name in names if name}
    return read | ({_name(node.target)} if isinstance(node, ast.AugAssign) else set())


def _written(node: Statement) -> set[str]:
    parts = (part for header in _header(node) for part in ast.walk(header))
    return {name for part in parts if _stores(part) if (name := _name(part))}


def _passed(node: Statement) -> set[str]:
    return _read(node) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else set()


def _stores(part: ast.AST) -> bool:
    """Whether it is written: a variable, or an item or an attribute of it."""
    return isinstance(getattr(part, "ctx", None), ast.Store)


def _name(part: ast.AST) -> str:
    """The variable, such as ``batch`` or ``self.batch``; empty: it is none."""
    if isinstance(part, ast.Name):
        return part.id if part.id != "self" else ""
    if isinstance(part, ast.Attribute):
        own = isinstance(part.value, ast.Name) and part.value.id == "self"
        return f"self.{part.attr}" if own else _name(part.value) * _stores(part)
    return _name(part.value) if isinstance(part, ast.Subscript) else ""


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    every = function.args
    named = (*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg)
    return {one.arg for one in named if one is not None} - {"self"}


def _origin(node: Statement, frame: Frame) -> Origin:
    return Origin(
        file=frame.file,
        function=frame.function,
        line=node.lineno,
        end=max(node.lineno, _end(node)),
        counts=_counts(node),
        takes=_takes_items(node),
        gives=_takes_a_batch(node),
    )
