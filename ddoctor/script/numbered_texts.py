"""Numbers that texts get in the order of a set, which Python makes another one in each process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddoctor.evidence.source_text import below
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.values import MOST_STEPS

SAME_ORDER = ("list", "tuple", "iter", "enumerate")
"""Functions that keep the order of what they get."""
MADE = ("set", "frozenset")
JOINED = ("union", "intersection", "difference", "symmetric_difference")
"""Methods of sets that return one."""
SHARES = frozenset(
    {"broadcast_object_list", "scatter_object_list", "all_gather_object", "load", "loads"}
)
"""Functions by which all ranks may get the numbers of one of them, or those of a file."""
TEXTS = frozenset(
    {
        *("word", "words", "token", "tokens", "vocab", "vocabulary", "lexicon", "char", "chars"),
        *("character", "characters", "letter", "letters", "text", "texts", "phone", "phones"),
        *("phoneme", "phonemes", "subword", "subwords", "ngram", "ngrams", "stoi"),
        *("name", "names", "category", "categories", "symbol", "symbols", "grapheme", "graphemes"),
    }
)
"""Words of variables that hold texts. Small numbers have the same order in each process."""
DIGITS = re.compile(r"\d+")
OF_TEXTS = frozenset({"split", "strip", "lower", "upper", "stem", "listdir", "glob", "decode"})
"""Attributes and functions that give texts."""


def numbered_texts(program: Program) -> Iterator[Call]:
    """The calls of ``enumerate``, ``index`` and ``len`` whose numbers stand for texts."""
    if any(call.method in SHARES for call in program.calls):
        return
    in_order = {call.on for call in program.calls if call.method == "sort"}
    for call in program.calls:
        ordered = _numbered(call)
        if ordered is None or variable(ordered) in in_order - {""}:
            continue
        made = _set(ordered, call.scope, program, MOST_STEPS)
        if made is not None and _of_texts(call, made):
            yield call


def _numbered(call: Call) -> ast.expr | None:
    """What gets the numbers, in its own order; None: nothing."""
    if call.method == "index":
        return call.receiver
    if call.method == "len" and call.loops:
        return _grown(call.loops[-1].node, call)
    return call.node.args[0] if call.method == "enumerate" and _keeps(call) else None


def _grown(loop: ast.AST, length: Call) -> ast.expr | None:
    """What a loop goes through with ``numbers[text] = len(numbers)``; None: it does not."""
    node = length.statement
    place = node.targets[0] if isinstance(node, ast.Assign) else None
    if not isinstance(loop, ast.For) or not isinstance(place, ast.Subscript):
        return None
    counts = [variable(one) for one in length.node.args] == [variable(place.value)]
    by_item = variable(place.slice) == variable(loop.target) != ""
    return loop.iter if counts and by_item else None


def _set(node: ast.expr, scope: Scope, program: Program, steps: int) -> ast.expr | None:
    """The set whose order an expression has; None: it has another one."""
    if isinstance(node, ast.Set | ast.SetComp):
        return node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub):
        return _set(node.left, scope, program, steps)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        # Such as ["<unk>"] + list(kept).
        parts = (_set(one, scope, program, steps) for one in (node.left, node.right))
        return next(filter(None, parts), None)
    if isinstance(node, ast.List | ast.Tuple):
        spread = (one.value for one in node.elts if isinstance(one, ast.Starred))
        found = (_set(one, scope, program, steps) for one in spread)
        return next(filter(None, found), None)
    if isinstance(node, ast.Call):
        name = own_name(node.func)
        if name in MADE and isinstance(node.func, ast.Name):
            return node
        if name in JOINED and isinstance(node.func, ast.Attribute):
            # Also of ``set().union(*lists)``.
            return node if _set(node.func.value, scope, program, steps) is not None else None
        kept = node.args[:1] if name in SAME_ORDER else []
        return next((_set(one, scope, program, steps) for one in kept), None)
    if variable(node) and steps:
        values = [_set(one, by, program, steps - 1) for one, by in program.values(node, scope)]
        return values[0] if values and None not in values else None
    return None


def _keeps(call: Call) -> bool:
    """Whether a table by what is numbered gets the numbers."""
    for node in below(call.statement):
        loop = next((one for one in getattr(node, "generators", ()) if one.iter is call.node), None)
        if isinstance(node, ast.DictComp) and loop is not None:
            return _is_second(node.key, loop.target)
        if isinstance(node, ast.For) and node.iter is call.node:
            every = (one for part in node.body for one in below(part))
            places = (one.targets[0] for one in every if isinstance(one, ast.Assign))
            return any(
                isinstance(one, ast.Subscript) and _is_second(one.slice, node.target)
                for one in places
            )
    return False


def _is_second(key: ast.expr, target: ast.expr) -> bool:
    pair = target.elts if isinstance(target, ast.Tuple) else []
    return len(pair) == 2 and variable(key) != "" and variable(key) == variable(pair[1])


def _of_texts(call: Call, made: ast.expr) -> bool:
    """Whether a word near the call or the set says that its items are texts."""
    nodes = [*below(made), *below(call.node)]
    if isinstance(call.statement, ast.Assign):
        nodes += call.statement.targets
    # As of word2idx.
    names = {DIGITS.sub("_", variable(one) or own_name(one)) for one in nodes}
    written = any(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in nodes)
    return written or any((TEXTS | OF_TEXTS) & lower(name) for name in names)
