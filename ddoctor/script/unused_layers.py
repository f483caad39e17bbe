"""Layers of the script's own models whose parameters never take part in the loss."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddoctor.script.names import Names, variable
from ddoctor.script.never_given import never_given
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope, Walk
from ddoctor.script.switches import Test, mentions, needs

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


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer that takes no part in the loss."""

    node: ast.expr
    """What makes it."""
    scope: Scope
    unless: Sequence[tuple[Test, ...]] = ()
    """What all must hold at any place that uses it; empty: no place does."""


def unused_layers(walks: Sequence[Walk], program: Program) -> Iterator[Layer]:
    """Such layers, also those that an option of the launch may leave out."""
    made = {call.name for call in program.calls}
    models = [one for walk in walks for one in _models(walk, program, made)]
    if not models:
        return
    words = Counter(word for walk in walks for word in _words(walk))
    own = {node: _own_words(node) for walk in walks for node, _ in walk.classes}
    extended = {base for bases in program.bases.values() for base in bases}
    every = sum(own.values(), Counter[str]())
    if any(words[one] for one in (*BY_ANY_NAME, *OPTIONS)):
        return
    for model in models:
        full = f"{model.scope.module.name}.{model.node.name}"
        # `self.head` of another class is a layer of that one.
        others = every - own[model.node] if full not in extended else Counter[str]()
        named = words - others
        yield from (Layer(model.layers[one], model.scope) for one in _skipped(model, program))
        yield from _switched(model, program, named)
        yield from _without_argument(model, program, named)
        dropped = {*_dropped(model), *_ignored(model, program)}
        for name, call in model.layers.items():
            # The assignment, and the one use whose result nobody reads.
            if named[name] <= 1 + (name in dropped):
                yield Layer(call, model.scope)


def _switched(model: _Model, program: Program, words: Counter[str]) -> Iterator[Layer]:
    """Layers that ``forward`` alone names, and only in branches that depend on an option."""
    forward = _forward(model)
    if forward is None:
        return
    named = mentions(forward)
    uses = needs(forward, model.scope, program)
    for name, call in model.layers.items():
        sets = program.variables.get((model.scope, f"self.{name}"), ())
        sure = len(sets) == 1 and not sets[0].around
        if sure and all(uses.get(name, ((),))) and words[name] == 1 + named[name]:
            yield Layer(call, model.scope, uses[name])


def _without_argument(model: _Model, program: Program, words: Counter[str]) -> Iterator[Layer]:
    """Layers that ``forward`` alone names, and only with an argument that nothing gives."""
    forward, scope = _forward(model), program.functions.get(f"{model.scope.owner}.forward")
    named = mentions(forward) if forward is not None else Counter[str]()
    for name in never_given(scope, program) if scope is not None else ():
        if name in model.layers and words[name] == 1 + named[name]:
            yield Layer(model.layers[name], model.scope)


def _models(walk: Walk, program: Program, made: Container[str]) -> Iterator[_Model]:
    """Those that the script makes."""
    for node, _ in walk.classes:
        names = walk.scopes[0].names
        full = f"{walk.scopes[0].module.name}.{node.name}"
        scope = program.functions.get(f"{full}.__init__")
        own = [names.of(base) for base in node.bases] == ["torch.nn.Module"]
        if full not in made or not own or scope is None:
            continue
        if scope.owner == full:
            layers = {
                name.removeprefix("self."): values[0]
                for name, values in scope.attributes.items()
                # `self.vision.head` is a layer of another module, which uses it.
                if name.count(".") == 1
                and len(values) == 1
                and isinstance(values[0], ast.Call)
                and _has_parameters(values[0], names, program)
            }
            yield _Model(node, scope, layers)


def _has_parameters(made: ast.Call, names: Names, program: Program) -> bool:
    name = names.of(made.func)
    inner = [names.of(one.func) for one in ast.walk(made) if isinstance(one, ast.Call)]
    holds = name in CONTAINERS and any(
        one in LAYERS or _is_own_layer(one, program) for one in inner
    )
    return name in LAYERS or holds or _is_own_layer(name, program)


def _is_own_layer(name: str, program: Program) -> bool:
    """Whether it is a class of the script that makes layers in its ``__init__``."""
    init = program.functions.get(f"{name}.__init__")
    own = init is not None and program.bases.get(name) == ["torch.nn.Module"]
    return own and init is not None and any(call.name in LAYERS for call in init.calls)


def _words(walk: Walk) -> Iterator[str]:
    """All words of a module that may name a layer: attributes, names, keywords and texts."""
    nodes = walk.scopes[0].module.nodes
    # What `getattr(model, "head")` reads is among the texts.
    known = {
        node.func
        for node in nodes.of(ast.Call)
        if variable(node.func) == "getattr"
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
    }
    for node in nodes.of(ast.Attribute, ast.Name, ast.keyword, ast.Constant):
        if node in known or _reads_gradients(node):
            continue
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.replace(".", " ").split()


def _own_words(node: ast.ClassDef) -> Counter[str]:
    """The attributes of ``self`` that a class names."""
    return Counter(
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and variable(one.value) == "self"
    )


def _reads_gradients(node: ast.AST) -> bool:
    """Whether it asks which parameters are trained, and freezes none."""
    asks = isinstance(node, ast.Attribute) and node.attr == "requires_grad"
    return asks and isinstance(getattr(node, "ctx", None), ast.Load)


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
