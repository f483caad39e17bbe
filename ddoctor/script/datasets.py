"""The datasets that a script defines, and whether they give each rank and worker its part."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from ddoctor.evidence.source_facts import SourceDataset
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.source_text import below
from ddoctor.script.names import Names, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.scopes import Scope
from ddoctor.script.streams import deals, fixed_draws, methods_of, words_of

SHARDS = frozenset(
    {
        *("rank", "ranks", "world", "shard", "worker", "workers", "replica", "replicas"),
        *("islice", "node", "process", "processes", "distributed"),
    }
)
"""Words of code that gives each rank or worker its own part of a stream."""
OF_RANKS = SHARDS - {"shard", "worker", "workers", "islice"}
ITEMS = ("__getitem__", "__iter__", "__getitems__")
GENERATORS = (
    *("numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.Generator"),
    *("random.Random",),
)
"""A generator that a dataset keeps; torch seeds only the global ones of each worker."""
At = Callable[[ast.AST], SourceLine]
Line = Callable[[ast.AST, Scope], SourceLine]
Methods = Mapping[str, ast.FunctionDef]
SAMPLES = frozenset({"sample", "generate", "rollout", "play"})
"""Words of methods that make or draw items."""
DRAWS = ("random", "rand", "randn", "randint", "rng", "generator", "shuffle", "choice", "seed")


def datasets(
    top: Scope, program: Program, at_line: Line, on_cuda: Collection[str]
) -> Iterator[SourceDataset]:
    """The classes of a module that are datasets of torch, or look like one.

    ``on_cuda``: the functions and classes of the script that anything passes a GPU.
    """
    names = top.names

    def at(node: ast.AST) -> SourceLine:
        return at_line(node, top)

    for node in top.module.nodes.of(ast.ClassDef):
        methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
        name = names.of(ast.Name(id=node.name)) or node.name
        bases = [*map(names.of, node.bases)]
        inner = [one for base in bases for one in program.bases.get(base, ())]
        stream = any(base.endswith(".IterableDataset") for base in (*bases, *inner))
        scopes = methods_of(name, program)
        iterates = any(one.name.endswith(".__iter__") for one in scopes)
        if not (stream and iterates) and "__getitem__" not in methods:
            continue
        found = frozenset(words_of(scopes))
        drawn = fixed_draws(scopes, program)
        alike = fixed_draws(scopes, program, seeds=("same", "by-rank"))
        dealt = deals(name, scopes, program) if stream else None
        yield SourceDataset(
            name=name,
            at=at(node),
            iterable=stream and "__getitem__" not in methods,
            shards=bool(SHARDS & found),
            shards_workers="worker" in found,
            shards_ranks=bool(OF_RANKS & found),
            random=bool(set(DRAWS) & frozenset().union(*map(lower, _names(node)))),
            plays=_plays(methods),
            fixed=at_line(drawn.node, drawn.scope) if drawn is not None else None,
            alike=alike is not None,
            dealt=at_line(*dealt) if dealt is not None else None,
            endless=any(map(_never_ends, ast.walk(node))),
            generator=_generator(methods, names, at),
            cuda=_cuda(methods, at) or _kept_on_cuda(node.name, methods, on_cuda, at),
        )


def _plays(methods: Methods) -> bool:
    """Whether ``__iter__`` samples from, or iterates over the call of, what the dataset was given:
    ``self.buffer.sample(8)``, ``yield from self.generate()``."""
    inside = [*below(methods["__iter__"])] if "__iter__" in methods else []
    sources = {
        node.iter if isinstance(node, ast.For) else node.value
        for node in inside
        if isinstance(node, ast.For | ast.YieldFrom | ast.Return)
    }
    for node in inside:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            own = variable(node.func).startswith("self.")
            given = variable(node.func.value) == "self" and node.func.attr not in methods
            if own and (SAMPLES & lower(node.func.attr) or (given and node in sources)):
                return True
    return False


def _never_ends(node: ast.AST) -> bool:
    return isinstance(node, ast.While) and isinstance(node.test, ast.Constant)


def _generator(methods: Methods, names: Names, at: At) -> SourceLine | None:
    made = methods.get("__init__")
    drawn = {
        name
        for method, body in methods.items()
        if method != "__init__"
        for name in _attributes(ast.walk(body))
    }
    for node in ast.walk(made) if made is not None else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            targets = set(_attributes(node.targets))
            if names.of(node.value.func) in GENERATORS and targets & drawn:
                return at(node)
    return None


def _attributes(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names of what objects hold; a name of a function's own may mean something else in another."""
    return (variable(node) for node in nodes if isinstance(node, ast.Attribute))


def _cuda(methods: Methods, at: At) -> SourceLine | None:
    for item in ITEMS:
        for node in ast.walk(methods[item]) if item in methods else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                first = node.args[0] if node.args else None
                named = isinstance(first, ast.Constant) and str(first.value).startswith("cuda")
                if node.func.attr == "cuda" or (node.func.attr == "to" and named):
                    return at(node)
    return None


def _kept_on_cuda(
    name: str, methods: Methods, on_cuda: Collection[str], at: At
) -> SourceLine | None:
    """Where it keeps a model on a GPU that it is given, and calls it for the items."""
    made = methods.get("__init__")
    for node in ast.walk(made) if made is not None and name in on_cuda else ():
        moved = isinstance(node, ast.Assign) and any(
            isinstance(part, ast.Attribute) and part.attr in ("to", "cuda")
            for part in ast.walk(node.value)
        )
        target = variable(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if moved and target.startswith("self.") and _calls(target, methods):
            return at(node)
    return None


def _calls(name: str, methods: Methods) -> bool:
    return any(
        isinstance(node, ast.Call)
        and (variable(node.func) == name or variable(node.func).startswith(f"{name}."))
        for method, body in methods.items()
        if method != "__init__"
        for node in ast.walk(body)
    )


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.arg):
            yield part.arg
