"""Numbers of ranks that a script takes from its options, and not from the process group.

Such as ``ShardSampler(n, rank, cfg.gpus)`` and ``files[rank::args.gpus]``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddoctor.script.names import variable, words
from ddoctor.script.objects import arguments
from ddoctor.script.options import changes, held, option_name, root_of
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope

RANK = {"torch.distributed.get_rank", "os.environ[RANK]"}
"""Origins of the rank among all."""
LIBRARY: Mapping[str, tuple[str, ...]] = {
    "torch.distributed.init_process_group": ("", "", "", "world_size", "rank"),
    "torch.utils.data.DistributedSampler": ("", "num_replicas", "rank"),
    "datasets.distributed.split_dataset_by_node": ("", "rank", "world_size"),
    ".shard": ("num_shards", "index"),
}
"""Functions of libraries that take both numbers, by position."""
NUMBERS = frozenset(
    {
        *("num_replicas", "replicas", "world_size", "world", "num_shards", "n_shards", "shards"),
        *("num_ranks", "n_ranks", "nranks", "ranks", "num_gpus", "n_gpus", "ngpus", "gpus"),
        *("num_processes", "n_processes", "processes", "nprocs", "num_procs", "ngpu"),
    }
)
"""Names of an argument that is the number of ranks."""
GROUPS = ("new_group", "new_subgroups", "init_device_mesh", "DeviceMesh")
"""What shares the ranks out: then one of its numbers is meant."""
JOINS = frozenset({"init", "setup", "dist", "distributed", "launch", "spawn"})
"""Words of a function of a library that may set the options of joining."""


@dataclass(frozen=True)
class ToldRanks:
    """A place that takes the rank, and with it a number of ranks."""

    node: ast.expr
    scope: Scope
    option: str
    """The option that it is, with those of its sections; empty: a constant."""
    given: str
    """The constant, or the default of the option in a class."""


def told_ranks(program: Program) -> Iterator[ToldRanks]:
    """The places where the source shows the constant, or the option that nothing changes."""
    if any(call.method in GROUPS for call in program.calls):
        return
    for call in program.calls:
        several = len(call.node.args) + len(call.node.keywords) > 1
        given = _given(call, program) if several else {}
        ranks = [one for one in given.values() if _is_rank(one, call.scope, program)]
        for name, value in given.items() if ranks else ():
            if name in NUMBERS:
                yield from _told(call.node, value, call.scope, program)
    for node, scope in _slices(program):
        if _is_rank(node.lower, scope, program) and node.step is not None:
            yield from _told(node.step, node.step, scope, program)


def _given(call: Call, program: Program) -> Mapping[str, ast.expr]:
    called = program.called(call)
    if called is not None:
        return arguments(call.node, called)
    names = LIBRARY.get(call.name, LIBRARY.get(f".{call.method}", ()))
    by_name = {one.arg: one.value for one in call.node.keywords if one.arg is not None}
    return {**dict(zip(names, call.node.args, strict=False)), **by_name}


def _slices(program: Program) -> Iterator[tuple[ast.Slice, Scope]]:
    """The slices with a step, each with its function."""
    for module in {one.module for one in program.scopes}:
        for node in module.nodes.of(ast.Slice):
            if node.step is not None:
                yield node, program.scope_of(node, module)


def _is_rank(node: ast.expr | None, scope: Scope, program: Program) -> bool:
    made = {*program.origins(node, scope)} if node is not None else set()
    return bool(made) and made <= RANK


def _told(node: ast.expr, value: ast.expr, scope: Scope, program: Program) -> Iterator[ToldRanks]:
    found = held(value, scope, program)
    if found is None:
        return
    known, where = found
    if isinstance(known, ast.Constant) and type(known.value) is int:
        yield ToldRanks(node, scope, "", str(known.value))
    elif option := option_name(known, where, program):
        root = variable(root_of(known))
        if not changes(option, program) and not _joins(root, program):
            default = program.defaults.get(option.rpartition(".")[2], "")
            yield ToldRanks(node, scope, option, default)


def _joins(root: str, program: Program) -> bool:
    """Whether a library gets the options, and may set in them what it finds."""
    return any(
        program.called(call) is None
        and JOINS & words(call.name)
        and root in map(variable, call.node.args)
        for call in program.calls
    )
