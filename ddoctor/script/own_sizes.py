"""How many parameters a script's own models have, as far as their layers show it.

Each term is arithmetic of constants and options, such as ``cfg.width * 4 * cfg.width``; what the
source does not show is left out, so their sum is the least that the model has.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddoctor.script.calls import is_accelerator
from ddoctor.script.made_models import makers
from ddoctor.script.names import variable
from ddoctor.script.objects import arguments, defaults
from ddoctor.script.options import changes, held, option_name
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Call, Scope, Statement

WRAPS = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed.fsdp.fully_shard",
)
DEEPSPEED = "deepspeed.initialize"
HALVES = ("half", "bfloat16", "set_default_dtype")
OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Div: "/",
    ast.Pow: "**",
}
CONVERTS = ("int", "round", "float")
SEVERAL = (ast.ListComp, ast.GeneratorExp)
MOST_NESTED = 8
"""Layers within each other, and variables that are followed."""
MOST_TERMS = 400

Given = Mapping[str, str]
"""What the arguments of a class or a function are."""


@dataclass(frozen=True)
class OwnSize:
    """A model of the script."""

    made: Call
    name: str
    terms: Sequence[str]
    halves: bool
    """Whether a line may turn weights to 16 bits."""


def own_sizes(program: Program) -> Iterator[OwnSize]:
    """The models that DDP or FSDP wraps, where all that makes them is shown."""
    calls = {call.node: call for call in program.calls}
    halves = any(
        call.method in HALVES or (call.method == "to" and "float16" in ast.unparse(call.node))
        for call in program.calls
    )
    seen: set[ast.AST] = set()
    for wrap, given in _wrapped(program):
        for node in makers(given, wrap.scope, program):
            made = calls.get(node) if isinstance(node, ast.Call) else None
            if made is None or node in seen or made.name not in program.objects.own:
                continue
            seen.add(node)
            reader = _Reader(program)
            terms = [*reader.of_class(made.node, made.scope, {}, (), MOST_NESTED)]
            if terms:
                yield OwnSize(made, made.method, terms[:MOST_TERMS], halves)


def _wrapped(program: Program) -> Iterator[tuple[Call, ast.expr]]:
    """What DDP, FSDP, accelerate or DeepSpeed gets."""
    for call in program.calls:
        prepares = call.name == DEEPSPEED or (call.method == "prepare" and is_accelerator(call))
        if call.name in WRAPS or prepares:
            given = call.node.args if prepares else call.node.args[:1]
            named = [one.value for one in call.node.keywords if one.arg == "model"]
            yield from ((call, one) for one in (*given, *named))


class _Reader:
    """Reads the layers that a class makes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ties = any(map(_ties, program.statements))

    def of_class(
        self, node: ast.Call, scope: Scope, given: Given, times: Sequence[str], deeper: int
    ) -> Iterator[str]:
        """The terms of a class of the script, made by a call."""
        name = scope.names.of(node.func)
        made = self.program.objects.method(name, "__init__")
        if made is None or not deeper or any(one.arg is None for one in node.keywords):
            return
        passed = {**defaults(made), **arguments(node, made)}
        inner = {
            key: text
            for key, value in passed.items()
            if (text := self.text(value, scope, given, deeper)) is not None
        }
        for part, more in _made_in(made.node):
            counts = [self.text(one, made, inner, deeper) for one in more]
            every = (*times, *(one for one in counts if one is not None))
            yield from self.of_call(part, made, inner, every, deeper - 1)

    def of_call(
        self, node: ast.Call, scope: Scope, given: Given, times: Sequence[str], deeper: int
    ) -> Iterator[str]:
        """The terms of a layer: of torch, or of another class of the script."""
        name = scope.names.of(node.func)
        if name in self.program.objects.own:
            yield from self.of_class(node, scope, given, times, deeper)
        layer = LAYERS.get(name.rpartition(".")[2]) if name.startswith("torch.nn.") else None
        # An embedding that is the last layer, too, counts once.
        layer = None if layer is _embedding and self.ties else layer
        for factors in layer(node) if layer is not None else ():
            texts = [self.text(one, scope, given, MOST_NESTED) for one in factors]
            if None not in texts:
                yield " * ".join(filter(None, (*times, *texts)))

    def text(self, node: ast.expr, scope: Scope, given: Given, steps: int) -> str | None:
        """A number as arithmetic of constants and options; None: not known."""
        if isinstance(node, ast.Constant):
            plain = isinstance(node.value, int | float) and not isinstance(node.value, bool)
            return str(node.value) if plain else None
        if isinstance(node, ast.BinOp):
            sign = OPERATORS.get(type(node.op))
            left = self.text(node.left, scope, given, steps)
            right = self.text(node.right, scope, given, steps)
            return f"({left} {sign} {right})" if sign and left and right else None
        if isinstance(node, ast.Call) and variable(node.func) in CONVERTS and len(node.args) == 1:
            return self.text(node.args[0], scope, given, steps)
        if isinstance(node, ast.Name) and scope.variables.get(node.id) == [None]:
            return given.get(node.id)
        values = scope.shown(variable(node)) if steps and variable(node) else ()
        if len(values) == 1:
            return self.text(values[0], scope, given, steps - 1)
        found = held(node, scope, self.program)
        if found is None:
            return None
        if isinstance(found[0], ast.Constant):
            return self.text(found[0], found[1], {}, 0)
        option = option_name(*found, self.program)
        named = bool(option) and not changes(option, self.program)
        return option if named and option.replace(".", "_").isidentifier() else None


def _ties(statement: Statement) -> bool:
    """Whether it gives one layer the weights of another: ``head.weight = tokens.weight``."""
    node = statement.node
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    ends = [getattr(one, "attr", "") for one in (target, getattr(node, "value", None))]
    return ends == ["weight", "weight"]


def _made_in(node: ast.AST) -> Iterator[tuple[ast.Call, Sequence[ast.expr]]]:
    """The calls that each run of a function makes, each with how often loops repeat it."""
    ahead: list[tuple[ast.AST, tuple[ast.expr, ...]]] = [
        (one, ()) for one in getattr(node, "body", [])
    ]
    while ahead:
        one, times = ahead.pop()
        if isinstance(one, ast.If | ast.IfExp | ast.FunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(one, ast.Call):
            yield one, times
        inner = times
        if isinstance(one, SEVERAL):
            inner = (*times, *(_count(each.iter) for each in one.generators if not each.ifs))
        elif isinstance(one, ast.For):
            inner = (*times, _count(one.iter))
        ahead += [(part, inner) for part in ast.iter_child_nodes(one)]


def _count(iterated: ast.expr) -> ast.expr:
    """The number of rounds of ``for _ in range(n)``; one, where it is not shown."""
    plain = isinstance(iterated, ast.Call) and own_name(iterated.func) == "range"
    if plain and isinstance(iterated, ast.Call) and len(iterated.args) == 1:
        return iterated.args[0]
    return ast.Constant(1)


Product = Sequence[ast.expr]


def _argument(node: ast.Call, at: int, name: str) -> ast.expr:
    """An argument of a layer; one that is not given is unknown."""
    named = next((one.value for one in node.keywords if one.arg == name), None)
    return node.args[at] if at < len(node.args) else named or ast.Constant(None)


def _linear(node: ast.Call) -> Iterator[Product]:
    yield _argument(node, 0, "in_features"), _argument(node, 1, "out_features")


def _embedding(node: ast.Call) -> Iterator[Product]:
    yield _argument(node, 0, "num_embeddings"), _argument(node, 1, "embedding_dim")


def _attention(node: ast.Call) -> Iterator[Product]:
    width = _argument(node, 0, "embed_dim")
    yield ast.Constant(4), width, width


def _encoder(node: ast.Call) -> Iterator[Product]:
    """Attention and feed-forward of torch.nn.TransformerEncoderLayer."""
    width, inner = _argument(node, 0, "d_model"), _argument(node, 2, "dim_feedforward")
    yield ast.Constant(4), width, width
    default = isinstance(inner, ast.Constant) and inner.value is None
    yield ast.Constant(2), width, ast.Constant(2048) if default else inner


def _convolution(node: ast.Call) -> Iterator[Product]:
    kernel = _argument(node, 2, "kernel_size")
    grouped = len(node.args) > 6 or any(one.arg == "groups" for one in node.keywords)
    dimensions = {"Conv1d": 1, "Conv2d": 2, "Conv3d": 3}.get(own_name(node.func), 1)
    if not grouped:
        yield (
            _argument(node, 0, "in_channels"),
            _argument(node, 1, "out_channels"),
            *[kernel] * dimensions,
        )


LAYERS: Mapping[str, Callable[[ast.Call], Iterator[Product]]] = {
    "Linear": _linear,
    "Embedding": _embedding,
    "MultiheadAttention": _attention,
    "TransformerEncoderLayer": _encoder,
    "Conv1d": _convolution,
    "Conv2d": _convolution,
    "Conv3d": _convolution,
}
"""Weights of layers of ``torch.nn``, by their documentation; biases and norms are left out."""
