"""Lines that use the rank or the number of ranks in a way that may give each rank its own data."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Container, Iterator

from ddoctor.evidence.source_text import Nodes, below
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Call, Scope

RANKS = frozenset({"rank", "ranks", "world", "replica", "replicas", "procid"})
OF_DEVICES = frozenset({"local", "gpu", "device"})
OF_MODELS = ("fully_shard", "FullyShardedDataParallel", "FSDP", "parallelize_module")
"""Functions that share out a model."""
NO_SPLITTERS = ("split", "rsplit", "train_test_split", "path", *OF_MODELS)
SPLITTERS = frozenset({"sampler", "shard", "shards", "sharded", "split", "distribute", "mesh"})
"""Words of functions that share data out, whatever they get."""
SEEDING = frozenset(
    {
        *("manual_seed", "manual_seed_all", "seed", "set_seed", "seed_everything", "seed_all"),
        *("default_rng", "RandomState", "Random", "PRNGKey", "fold_in"),
    }
)
"""Functions that make random numbers differ between ranks, not the data."""
KNOWN = ("torch", "numpy")
HARMLESS = SEEDING | frozenset(
    {
        *("print", "info", "debug", "warning", "error", "log", "format", "join", "write"),
        *("set_device", "device", "to", "cuda", "device_count", "range", "int", "str", "bool"),
        *("DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP"),
        *("init_process_group", "spawn", "barrier", "all_reduce", "broadcast", "reduce", "append"),
        *("all_gather", "gather", "getenv", "get", "isinstance", "getattr", "hasattr", "float"),
        *("add_argument", "new_group", "load", "save", "set_postfix", "tqdm"),
        *("basicConfig", "setLevel", "getLogger"),
    }
)
"""Functions that select no data by a rank that they get."""


def splits(program: Program) -> Iterator[tuple[ast.AST, Scope]]:
    """The calls and expressions, each with its function or file."""
    seeds = {part for call in program.calls for given in _seeds(call) for part in below(given)}
    for call in program.calls:
        selects = call.method not in HARMLESS and _passes(call, program, seeds)
        splitter = SPLITTERS & lower(call.method) and call.method not in NO_SPLITTERS
        if selects or (splitter and not _shards_nothing(call, program)):
            yield call.node, call.scope
    for scope in program.scopes:
        every = scope.module.nodes if scope.outer is None else Nodes()
        for node in every.of(ast.Subscript, ast.BinOp):
            selects = isinstance(node, ast.Subscript) and _is_rank(node.slice, seeds)
            if selects or (isinstance(node, ast.BinOp) and node not in seeds and _shifts(node)):
                yield node, scope


def _shards_nothing(call: Call, program: Program) -> bool:
    """Whether a function or class of the script, with such a word in its name, shares no data out.

    It shards a model, or it has no word for a rank.
    """
    called = program.called(call)
    if called is None:
        return False
    if any(one.method in OF_MODELS for one in called.calls):
        return True
    own = [called, *program.methods.get(called.owner, ())]
    names = {word for one in own for part in ast.walk(one.node) for word in _words(part)}
    known = all(_is_known(one, program) for each in own for one in each.calls)
    by_rank = any(_comes_from_a_rank(one, call, program) for one in _given(call))
    return known and not by_rank and not names & RANKS


def _given(call: Call) -> Iterator[ast.AST]:
    """The variables in the arguments of a call."""
    values = (*call.node.args, *(word.value for word in call.node.keywords))
    return (part for one in values for part in below(one) if variable(part))


def _comes_from_a_rank(node: ast.AST, call: Call, program: Program) -> bool:
    origins = program.origins(node, call.scope) if isinstance(node, ast.expr) else ()
    return any(RANKS & lower(one) for one in origins)


def _is_known(call: Call, program: Program) -> bool:
    """Whether it calls the script's own code, a method, or a package that knows no rank."""
    package = call.name.partition(".")[0] or (call.method if call.receiver is None else "")
    plain = not package or package in KNOWN or hasattr(builtins, package)
    return plain or package in sys.stdlib_module_names or program.called(call) is not None


def _words(node: ast.AST) -> frozenset[str]:
    """The words of a name or of a text."""
    text = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "value", "")
    return lower(text) if isinstance(text, str) else frozenset()


def _seeds(call: Call) -> Iterator[ast.expr]:
    """The arguments of a call that only seed."""
    if call.method in SEEDING:
        yield from (*call.node.args, *(word.value for word in call.node.keywords))
    else:
        yield from (word.value for word in call.node.keywords if "seed" in (word.arg or ""))


def _passes(call: Call, program: Program, seeds: Container[ast.AST]) -> bool:
    """Whether a call gets a rank, and its function may select data by it."""
    given = [
        (keyword, value)
        for keyword, value in (
            *((None, value) for value in call.node.args),
            *((word.arg, word.value) for word in call.node.keywords),
        )
        # Whether it is rank 0 selects no share.
        if _is_rank(value, seeds) and not isinstance(value, ast.Compare)
    ]
    if not given:
        return False
    called = program.called(call)
    if called is None:
        return True
    # The function's own lines show what it does, if its argument has such a name as well.
    names = [name for name in called.variables if (RANKS | OF_DEVICES) & lower(name)]
    return not names


def _is_rank(node: ast.AST, seeds: Container[ast.AST]) -> bool:
    """Whether an expression has a rank or the number of ranks in it, other than a local one."""
    return any(
        RANKS & lower(name) and "local" not in lower(name)
        for part in below(node)
        if part not in seeds and (name := variable(part).rpartition(".")[2])
    )


def _shifts(node: ast.BinOp) -> bool:
    """Whether it adds or multiplies a rank, as for a seed or an offset, but for a device."""
    text = {
        word
        for part in below(node)
        for word in lower(getattr(part, "attr", None) or getattr(part, "id", ""))
    }
    return "rank" in text and not {"count", "local"} & text and not isinstance(node.op, ast.Mod)
