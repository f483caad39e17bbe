"""Which conditions of a script test the rank."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from ddoctor.evidence.source_lines import Within
from ddoctor.script.names import variable, words

RANKS = frozenset(
    {
        *("rank", "local_rank", "global_rank", "world_rank", "ddp_rank", "ddp_local_rank"),
        *("dist_rank", "my_rank", "process_rank", "process_index", "local_process_index"),
        *("get_rank", "get_local_rank", "get_global_rank", "get_node_local_rank"),
        *("RANK", "LOCAL_RANK"),
    }
)
"""Names of the number of a process, as variables, attributes, functions and variables of torchrun.

A plain ``rank`` is also that of a LoRA adapter, which no one compares with 0.
"""
MAIN = frozenset(
    {
        *("is_main_process", "is_local_main_process", "is_main", "is_master", "is_master_process"),
        *("main_process", "master_process", "is_global_zero", "is_world_process_zero"),
        *("is_local_process_zero", "is_primary", "is_rank_zero", "is_rank0", "is_rank_0"),
        *("rank_zero", "is_chief", "is_root"),
    }
)
"""Names of a test that one process passes."""
HINTS = frozenset(
    {
        *("rank", "ranks", "main", "master", "primary", "chief", "leader", "zero", "procid"),
        *("process", "root", "gpu", "local", "node"),
    }
)
"""Words of a name that may test the rank."""
ALONE = -1
"""The rank of a run that is not distributed, in many scripts."""
SWAPPED: dict[Within, Within] = {"one-rank": "other-ranks", "other-ranks": "one-rank"}
WORDS = ("distributed", "ddp", "world", "initialized", "available", "multi", "parallel", "none")
"""Words of a test whether the run is distributed."""

Assigned = Callable[[str], Sequence[ast.expr]]
"""What a variable is assigned from; empty: not known."""
MOST_STEPS = 4
"""Assignments that are followed from a variable to a test."""


def kind_of(test: ast.expr, assigned: Assigned, *, negated: bool = False) -> Within:
    """What the body of a branch with this condition is for; ``negated``: the other branch."""
    return _kind_of(test, assigned, negated, MOST_STEPS)


def _kind_of(test: ast.expr, assigned: Assigned, negated: bool, steps: int) -> Within:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _kind_of(test.operand, assigned, not negated, steps)
    if isinstance(test, ast.BoolOp):
        return _several(test, assigned, negated, steps)
    kind = _single(test, assigned, steps)
    return SWAPPED.get(kind, kind) if negated else kind


def _single(test: ast.expr, assigned: Assigned, steps: int) -> Within:
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.left, test.ops[0], test.comparators[0], assigned)
    name = own_name(test)
    if name in MAIN:
        return "one-rank"
    if name in RANKS:
        return "other-ranks"
    called = test.func if isinstance(test, ast.Call) else test
    values = assigned(variable(called)) if steps else ()
    kinds = {_kind_of(value, assigned, False, steps - 1) for value in values}
    if len(kinds) == 1:
        return kinds.pop()
    return "some-ranks" if kinds - {"condition"} or hints(test) else "condition"


def own_name(node: ast.AST) -> str:
    """The last part of a variable, of what is called, or of a variable of the environment."""
    if isinstance(node, ast.Call):
        called = own_name(node.func)
        return _environment(node, called) or called
    if isinstance(node, ast.Subscript):
        return str(node.slice.value) if isinstance(node.slice, ast.Constant) else ""
    return str(getattr(node, "attr", None) or getattr(node, "id", ""))


def hints(node: ast.AST) -> bool:
    """Whether a word in an expression may be about ranks."""
    return any(HINTS & lower(name) for name in _names(node))


@lru_cache(maxsize=10_000)
def lower(name: str) -> frozenset[str]:
    """The words of a name."""
    return words(name)


def _several(test: ast.BoolOp, assigned: Assigned, negated: bool, steps: int) -> Within:
    kinds = [_kind_of(value, assigned, negated, steps) for value in test.values]
    ranks = {kind for kind in kinds if kind != "condition"}
    if not ranks:
        return "condition"
    others = [value for value, kind in zip(test.values, kinds, strict=True) if kind == "condition"]
    # `not distributed or rank == 0` is for one rank; `rank == 0 or args.everywhere` may not be.
    together = isinstance(test.op, ast.And) is not negated
    sure = together or all(map(_whether_distributed, others))
    return ranks.pop() if len(ranks) == 1 and sure else "some-ranks"


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr, assigned: Assigned) -> Within:
    if _number(left) is not None:
        left, right = right, left
    number, inner = _number(right), _inner(left)
    values = [_inner(value) for value in assigned(variable(inner))]
    by_value = bool(values) and all(own_name(value) in RANKS for value in values)
    if own_name(inner) not in RANKS and not by_value:
        return "some-ranks" if hints(left) or hints(right) else "condition"
    if isinstance(operator, ast.In | ast.NotIn) and isinstance(
        right, ast.List | ast.Tuple | ast.Set
    ):
        numbers = {_number(one) for one in right.elts}
        one = numbers <= {0, ALONE} and 0 in numbers
        if isinstance(operator, ast.In):
            return "one-rank" if one else "some-ranks"
        return "other-ranks" if one else "some-ranks"
    if number == ALONE or (isinstance(right, ast.Constant) and right.value is None):
        # Not a rank: whether the run is distributed. `> -1` is the same.
        return "condition"
    if number is None:
        return "some-ranks"
    if isinstance(operator, ast.Eq | ast.Is):
        return "one-rank"
    if isinstance(operator, ast.NotEq | ast.IsNot):
        return "other-ranks"
    if number == 0 and isinstance(operator, ast.Gt | ast.LtE):
        return "other-ranks" if isinstance(operator, ast.Gt) else "one-rank"
    if number == 0 and isinstance(operator, ast.GtE):
        return "condition"
    return "some-ranks"


def _inner(node: ast.expr) -> ast.AST:
    """What ``int(…)`` converts."""
    if isinstance(node, ast.Call) and own_name(node.func) in ("int", "str") and node.args:
        return node.args[0]
    return node


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return -inner if inner is not None else None
    if isinstance(node, ast.Constant):
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            return node.value
        if isinstance(node.value, str) and node.value in ("0", "-1"):
            return int(node.value)
    return None


def _environment(call: ast.Call, called: str) -> str:
    """The variable that ``os.environ.get("RANK")`` or ``os.getenv("RANK")`` reads."""
    if called not in ("get", "getenv") or not call.args:
        return ""
    name = call.args[0]
    read = isinstance(name, ast.Constant) and isinstance(name.value, str)
    return str(name.value) if read and str(name.value).isupper() else ""  # type: ignore[attr-defined]


def _whether_distributed(test: ast.expr) -> bool:
    named = [lower(name) for name in _names(test)]
    # `main or distributed_type == "DEEPSPEED"` lets all ranks of one kind of run in.
    if any("type" in one for one in named):
        return False
    return any(set(WORDS) & one for one in named) or (
        isinstance(test, ast.Compare) and own_name(test.left) in RANKS
    )


OF_DISTRIBUTED = frozenset({"distributed", "ddp", "dist", "world", "initialized", "available"})


def asks_if_distributed(test: ast.expr) -> bool:
    """Whether a condition only asks whether there are several ranks, as ``world_size > 1``."""
    if isinstance(test, ast.UnaryOp):
        return asks_if_distributed(test.operand)
    if isinstance(test, ast.BoolOp):
        return all(map(asks_if_distributed, test.values))
    asked = test.left if isinstance(test, ast.Compare) else test
    return bool(OF_DISTRIBUTED & lower(own_name(asked)))


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Constant) and str(part.value).isupper():
            yield str(part.value)
