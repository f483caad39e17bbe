"""Means over the tokens of one micro-batch that are then averaged over the micro-batches.

Micro-batches with few tokens then weigh as much as those with many.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.script.names import source, words
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.training_loops import BACKWARD

MOST_STEPS = 4
"""Variables and functions that are followed from backward to the loss."""
OF_STEPS = frozenset({"accum", "accumulate", "accumulation", "micro"})
OF_TOKENS = frozenset({"token", "tokens", "ntokens", "tok", "toks", "ntok", "items"})
LOSSES = ("torch.nn.functional.cross_entropy", "torch.nn.CrossEntropyLoss")
IGNORED = re.compile(r"-100|pad|ignore", re.IGNORECASE)
"""Labels of text that count for nothing; those of images are often 255 or -1."""
ALIKE = re.compile(
    r"\b(?:every|each|all)\b[^.]{0,40}\btokens?\b[^.]{0,60}"
    r"\b(?:weigh\w*|counts? (?:the same|equally|alike)|the same weight|equal\w*)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TokenMean:
    """A loss of this kind."""

    loss: ast.Call
    scope: Scope
    back: Call
    alike: str
    """What a comment or a docstring says on it: that all tokens weigh the same; or empty."""


def token_means(program: Program) -> Iterator[TokenMean]:
    """The losses of training loops, each with its call of backward."""
    for call in program.calls:
        if call.method not in BACKWARD or program.called(call) is not None:
            continue
        if not any(one.node in program.training for one in program.around(call)):
            continue
        function = call.node.func
        given = call.node.args[0] if call.node.args else getattr(function, "value", call.node)
        found = _divided(given, call, program, MOST_STEPS)
        if found is not None and not _counts_tokens(program, (found[1], call.scope)):
            yield TokenMean(*found, call, _alike((found[1], call.scope)))


def _divided(
    value: ast.AST, back: Call, program: Program, steps: int
) -> tuple[ast.Call, Scope] | None:
    """The mean in an expression that is divided by a number of micro-steps."""
    for part in ast.walk(value):
        above, below = _division(part)
        if above is not None and below is not None and _is_of_steps(below, back):
            return _mean(above, back.scope, program, steps)
        if isinstance(part, ast.Name) and steps:
            for one in back.scope.shown(part.id):
                if found := _divided(one, back, program, steps - 1):
                    return found
    return None


def _division(part: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    """Both sides of ``loss / number`` or ``loss.div(number)``."""
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div):
        return part.left, part.right
    if isinstance(part, ast.Call) and len(part.args) == 1 and own_name(part.func) == "div":
        return getattr(part.func, "value", None), part.args[0]
    return None, None


def _is_of_steps(number: ast.expr, back: Call) -> bool:
    """Whether it counts micro-steps: by its name, or as the length of what a loop runs over."""
    if OF_STEPS & words(source(number)):
        return True
    group = source(number.args[0]) if isinstance(number, ast.Call) and number.args else ""
    over = (one.node.iter for one in back.loops if isinstance(one.node, ast.For))
    return own_name(number) == "len" and any(
        group in (source(one), *map(source, getattr(one, "args", ()))) for one in over
    )


def _mean(
    value: ast.expr, scope: Scope, program: Program, steps: int
) -> tuple[ast.Call, Scope] | None:
    """The cross entropy that an expression is, if it leaves labels out and takes the mean."""
    if isinstance(value, ast.Name | ast.Attribute) and steps:
        found = (
            _mean(one, where, program, steps - 1) for one, where in program.values(value, scope)
        )
        return next((one for one in found if one is not None), None)
    if not isinstance(value, ast.Call):
        return None
    called = program.function(value)
    if called is not None and steps:
        results = program.results(called)
        return _mean(results[0], called, program, steps - 1) if len(results) == 1 else None
    made, where = value, scope
    if scope.names.of(value.func) not in LOSSES:
        # An object of the class.
        of = program.values(value.func, scope)
        if len(of) != 1 or not isinstance(of[0][0], ast.Call):
            return None
        made, where = of[0][0], of[0][1]
    given = {word.arg: source(word.value) for word in made.keywords}
    if where.names.of(made.func) not in LOSSES or given.get("reduction", "'mean'") != "'mean'":
        return None
    return (value, scope) if IGNORED.search(given.get("ignore_index", "")) else None


def _counts_tokens(program: Program, scopes: tuple[Scope, ...]) -> bool:
    """Whether these functions, or a training loop, scale by a number of tokens."""
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.Div | ast.Mult)
        and OF_TOKENS & words(" ".join(_read(part)))
        for one in program.statements
        if isinstance(one.node, ast.Assign | ast.AugAssign | ast.Expr)
        and (one.scope in scopes or any(each.node in program.training for each in one.around))
        for part in ast.walk(one.node)
    )


def _read(value: ast.expr) -> Iterator[str]:
    """The variables in an expression, without the functions that it calls."""
    parts = [one for one in ast.walk(value) if isinstance(one, ast.Name | ast.Attribute | ast.Call)]
    called = {one.func for one in parts if isinstance(one, ast.Call)}
    yield from (
        own_name(one) for one in parts if one not in called and not isinstance(one, ast.Call)
    )


def _alike(scopes: tuple[Scope, ...]) -> str:
    """The first line of these modules that says that all tokens weigh the same."""
    for scope in scopes:
        for line in scope.module.lines:
            if "token" in line and ALIKE.search(line):
                return line.strip().strip("\"'# ")
    return ""
