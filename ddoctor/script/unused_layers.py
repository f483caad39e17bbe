"""Layers of the script's own models whose parameters never take part in the loss."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddoctor.script.names import Names, variable
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope, Walk

LAYERS = frozenset(
    f"torch.nn.{name}"
    for name in (
        *("Linear", "Bilinear", "Embedding", "EmbeddingBag", "Parameter", "LSTM", "GRU", "RNN"),
        *("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
        *("LayerNorm", "GroupNorm", "RMSNorm", "MultiheadAttention", "Transformer"),
        *("TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayer"),
        *("TransformerDecoderLayer", "PReLU", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d"),
    )
)
"""Those that always have parameters."""
CONTAINERS = ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")
BY_ANY_NAME = frozenset(
    {
        *("children", "modules", "named_children", "named_modules", "_modules", "getattr"),
        *("requires_grad_", "requires_grad", "get_submodule", "add_module", "__dict__"),
    }
)
"""Words by which a source may use, or freeze, layers that it does not name."""
OPTIONS = frozenset({"find_unused_parameters", "static_graph", "ddp_find_unused_parameters"})


@dataclass(frozen=True, eq=False)
class _Model:
    """A class of the script that is a ``torch.nn.Module`` and nothing else."""

    node: ast.ClassDef
    scope: Scope
    """Of its ``__init__``."""
    layers: Mapping[str, ast.expr]
    """What its attributes are assigned from, by their names."""


def unused_layers(walks: Sequence[Walk], program: Program) -> Iterator[tuple[ast.AST, Scope]]:
    """The calls that make such layers, each with its function."""
    models = [one for walk in walks for one in _models(walk, program)]
    if not models:
        return
    words = Counter(word for walk in walks for word in _words(walk))
    if any(words[one] for one in (*BY_ANY_NAME, *OPTIONS)):
        return
    made = {call.name for call in program.calls}
    for model in models:
        if f"{model.scope.module.name}.{model.node.name}" not in made:
            continue
        yield from ((model.layers[one], model.scope) for one in _skipped(model, program))
        dropped = {*_dropped(model), *_ignored(model, program)}
        for name, call in model.layers.items():
            # The assignment, and the one use whose result nobody reads.
            if words[name] <= 1 + (name in dropped):
                yield call, model.scope


def _models(walk: Walk, program: Program) -> Iterator[_Model]:
    for node, _ in walk.classes:
        names = walk.scopes[0].names
        full = f"{walk.scopes[0].module.name}.{node.name}"
        scope = program.functions.get(f"{full}.__init__")
        if [names.of(base) for base in node.bases] != ["torch.nn.Module"] or scope is None:
            continue
        if scope.owner == full:
            layers = {
                name.removeprefix("self."): values[0]
                for name, values in scope.attributes.items()
                # `self.vision.head` is a layer of another module, which uses it.
                if name.count(".") == 1
                and len(values) == 1
                and isinstance(values[0], ast.Call)
                and _has_parameters(values[0], names)
            }
            yield _Model(node, scope, layers)


def _has_parameters(made: ast.Call, names: Names) -> bool:
    name = names.of(made.func)
    inner = (one for one in ast.walk(made) if isinstance(one, ast.Call))
    holds = name in CONTAINERS and any(names.of(one.func) in LAYERS for one in inner)
    return name in LAYERS or holds


def _words(walk: Walk) -> Iterator[str]:
    """All words of a module that may name a layer: attributes, names, keywords and texts."""
    for node in walk.scopes[0].module.nodes:
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.replace(".", " ").split()


def _forward(model: _Model) -> ast.FunctionDef | None:
    functions = (one for one in model.node.body if isinstance(one, ast.FunctionDef))
    return next((one for one in functions if one.name == "forward"), None)


def _layer(value: ast.expr | None) -> str:
    """The layer whose result an expression is: ``self.head(x)``."""
    name = variable(value.func) if isinstance(value, ast.Call) else ""
    return name.removeprefix("self.") if name.startswith("self.") else ""


def _results(function: ast.FunctionDef) -> Mapping[str, str]:
    """The variables that hold the result of a layer."""
    return {
        node.targets[0].id: layer
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and (layer := _layer(node.value))
    }


def _loads(function: ast.AST) -> Counter[str]:
    return Counter(
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )


def _dropped(model: _Model) -> Iterator[str]:
    """Layers whose result ``forward`` stores in a variable that it never reads."""
    forward = _forward(model)
    if forward is not None:
        loads = _loads(forward)
        yield from (layer for name, layer in _results(forward).items() if not loads[name])


def _ignored(model: _Model, program: Program) -> Iterator[str]:
    """Layers whose result ``forward`` returns among others, and no training loop reads."""
    forward = _forward(model)
    returns = [one for one in ast.walk(forward) if isinstance(one, ast.Return)] if forward else []
    if forward is None or len(returns) != 1 or not isinstance(returns[0].value, ast.Tuple):
        return
    results = _results(forward)
    loads = _loads(forward)
    trains = [call for call in program.calls if _trains(call, program)]
    for position, part in enumerate(returns[0].value.elts):
        name = variable(part)
        layer = results.get(name, "") if loads[name] == 1 else _layer(part)
        if layer and trains and all(_unread(call, position) for call in trains):
            yield layer


def _skipped(model: _Model, program: Program) -> Iterator[str]:
    """Layers that ``forward`` uses only where an argument says so, which changes between steps."""
    forward = _forward(model)
    if forward is None:
        return
    flags = {one.arg for one in forward.args.args[2:] + forward.args.kwonlyargs}
    changing = {
        word.arg
        for call in program.calls
        if _trains(call, program)
        for word in call.node.keywords
        if isinstance(word.value, ast.Compare)
    }
    test = next((one for one in forward.body if isinstance(one, ast.If)), None)
    if test is None or not {variable(one) for one in ast.walk(test.test)} & flags & changing:
        return
    inside, after = Counter[str](), Counter[str]()
    for node in forward.body:
        for part in ast.walk(node):
            name = variable(part).removeprefix("self.") if isinstance(part, ast.Attribute) else ""
            (inside if node is test else after)[name] += 1
    leaves = isinstance(test.body[-1], ast.Return) and not test.orelse
    for name in model.layers:
        if (leaves and after[name] and not inside[name]) or (
            not leaves and inside[name] and not after[name] and not test.orelse
        ):
            yield name


def _trains(call: Call, program: Program) -> bool:
    """Whether it is the forward pass of a training step, as far as a name can tell."""
    in_training = any(block.node in program.training for block in call.around)
    return in_training and variable(call.node.func).rpartition(".")[2] in (
        "model",
        "net",
        "ddp_model",
    )


def _unread(call: Call, position: int) -> bool:
    statement = call.statement
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, ast.Tuple) or position >= len(target.elts):
        return False
    one = target.elts[position]
    return isinstance(one, ast.Name) and not _loads(call.scope.node)[one.id]
