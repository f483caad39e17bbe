"""Rates and accumulation that follow from a batch size in which the number of ranks is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.evidence.source_text import below
from ddoctor.script.modules import Module
from ddoctor.script.names import source, variable, words
from ddoctor.script.program import Program
from ddoctor.script.scopes import Scope, Statement

OF_RANKS = frozenset(
    {
        *("world", "rank", "ranks", "gpus", "gpu", "devices", "replicas", "processes", "num"),
        *("ngpu", "ngpus", "nproc", "dp", "parallel", "nodes"),
    }
)
TOTAL = frozenset({"total", "global", "effective", "eff", "whole"})
RATES = frozenset({"lr", "rate"})
STEPS = frozenset({"accum", "accumulation", "accumulate", "grad"})
COUNTS = frozenset(
    {
        *("world", "ranks", "gpus", "ngpu", "ngpus", "nproc", "nprocs", "replicas", "processes"),
        *("devices", "device", "nodes", "workers", "dp"),
    }
)
"""Words of the number of ranks, without those of a rank itself."""
SCALED = RATES | STEPS | {"batch", "batches", "micro", "bs"}
LEAST, MOST = 32, 16_384
"""Of reference batches: 256 of ImageNet, 512, 4,096."""


def own_rates(program: Program) -> Iterator[Statement]:
    """Such as ``lr = base * batch / 256``, and ``accumulation = total // (micro * length)``."""
    if not any("DistributedDataParallel" in call.name for call in program.calls):
        return
    for statement in program.statements:
        node = statement.node
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = words(variable(node.targets[0]).rpartition(".")[2])
        told = words(_whole(node.value, statement.scope))
        if OF_RANKS & told or not {"batch", "batches"} & told:
            continue
        by_reference = RATES & target and not TOTAL & told and _divides(node.value)
        by_total = STEPS & target and isinstance(node.value, ast.BinOp) and _is_of_total(node.value)
        if by_reference or by_total:
            yield statement


def scales_by_ranks(program: Program) -> Statement | None:
    """The first line by which a rate or a batch may follow the number of ranks."""
    return next(filter(_scales, naming_ranks(program)), None)


def multiplies_by_ranks(program: Program) -> bool:
    """Whether a line surely does so, and not only by the name of a function."""
    return any(map(_multiplies, naming_ranks(program)))


def naming_ranks(program: Program) -> Iterator[Statement]:
    """The simple statements whose lines may name a number of ranks, or scale a rate."""
    named: dict[Module, Sequence[str]] = {}
    for one in program.statements:
        module = one.scope.module
        if module not in named:
            # Mostly none of them occurs, or one.
            text = "\n".join(module.lines).lower()
            named[module] = [word for word in ("scal", *COUNTS) if word in text]
        if named[module] and not hasattr(one.node, "body"):
            lines = " ".join(module.lines[one.node.lineno - 1 : one.node.end_lineno]).lower()
            if any(word in lines for word in named[module]):
                yield one


def _scales(statement: Statement) -> bool:
    if _multiplies(statement):
        return True
    for part in below(statement.node):
        name = words(getattr(part, "id", "") or getattr(part, "attr", "") or "")
        if {"scale", "scaled", "scaling"} & name and RATES & name:
            return True
    return False


def _multiplies(statement: Statement) -> bool:
    node = statement.node
    for part in below(node):
        if isinstance(part, ast.BinOp) and not isinstance(part.op, ast.Add | ast.Mod):
            read = words(source(part))
            sets = words(variable(node.targets[0])) if isinstance(node, ast.Assign) else set()
            if COUNTS & read and SCALED & (read | sets):
                return True
    return False


def _whole(value: ast.expr, scope: Scope) -> str:
    """The source of an expression, with that of the variables in it."""
    names = (
        variable(part) for part in ast.walk(value) if isinstance(part, ast.Name | ast.Attribute)
    )
    shown = (source(one) for name in names if name for one in scope.shown(name))
    return " ".join((source(value), *shown))


def _divides(value: ast.expr) -> bool:
    """Whether a part of it is divided by a reference batch."""
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.Div)
        and isinstance(part.right, ast.Constant)
        and isinstance(part.right.value, int | float)
        and LEAST <= part.right.value <= MOST
        for part in ast.walk(value)
    )


def _is_of_total(value: ast.BinOp) -> bool:
    """Whether it divides a number of samples or tokens by those of a micro-batch."""
    above, below = words(source(value.left)), words(source(value.right))
    wanted = {"tokens", "batch", "samples"} & above and (TOTAL | {"update", "step"}) & above
    return isinstance(value.op, ast.FloorDiv) and bool(wanted) and "micro" in below
