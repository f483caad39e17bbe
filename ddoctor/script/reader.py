"""Reads a training script and its own modules into evidence; nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

from ddoctor.evidence.redaction import beginning
from ddoctor.evidence.script import (
    Script,
    SourceAveraging,
    SourceBatches,
    SourceCall,
    SourceFrozen,
    SourceImport,
    SourceKeys,
    SourceLine,
    SourceLoop,
    SourceMixture,
    SourceNoise,
    SourcePrecision,
    SourceSampler,
    SourceSchedule,
    SourceSeed,
    SourceSetting,
    SourceSharding,
    SourceSwitch,
    SourceTest,
    SourceTokenMean,
    Within,
)
from ddoctor.script.arguments import keywords, made_by, spread
from ddoctor.script.batches import own_rates, scales_by_ranks
from ddoctor.script.calls import (
    USES_AT_IMPORT,
    is_collective,
    is_sharded_model,
    matters,
    uses_cuda,
)
from ddoctor.script.checkpoints import restored
from ddoctor.script.datasets import datasets
from ddoctor.script.exhausting import exhausts
from ddoctor.script.frozen import reentrant
from ddoctor.script.losses import kept
from ddoctor.script.mixed_layers import mixed_layers
from ddoctor.script.modules import Module, Modules
from ddoctor.script.names import PRINT, moved, source, variable
from ddoctor.script.noise import same_noise
from ddoctor.script.own_averaging import own_averaging
from ddoctor.script.own_batches import own_batches
from ddoctor.script.own_keys import over_own_keys
from ddoctor.script.past_wrapper import past_wrapper
from ddoctor.script.precision import precisions
from ddoctor.script.program import Program
from ddoctor.script.rank_names import rank_names
from ddoctor.script.ranks import hints, lower, own_name
from ddoctor.script.samplers import plain_samplers
from ddoctor.script.schedules import of_one_rank
from ddoctor.script.scopes import RANK_TESTS, Block, Call, Scope, Statement, Walk
from ddoctor.script.seeding import constant_seeds
from ddoctor.script.splits import splits
from ddoctor.script.stopping import own_stops
from ddoctor.script.switches import Test
from ddoctor.script.token_means import token_means
from ddoctor.script.unused_layers import unused_layers
from ddoctor.script.values import origins

FULLY_SHARD = "torch.distributed.fsdp.fully_shard"
MOST_FACTS = 2000
"""Of each kind; a script of 5,000 lines has some hundred."""
LONGEST = 300
"""Characters of a statement or an argument."""
MOST_ARGUMENTS = 20
OF_ACCUMULATION = frozenset({"accum", "accumulate", "accumulation", "micro"})
"""Words of a number of micro-steps."""
MOST_ASSIGNED = 3
"""Expressions that a variable is assigned from."""
FRAMEWORKS = {
    "accelerate": "accelerate",
    "trl": "TRL",
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "lightning_fabric": "Lightning",
    "deepspeed": "DeepSpeed",
    "ray": "Ray",
    "horovod": "Horovod",
    "colossalai": "Colossal-AI",
    "megatron": "Megatron",
    "fairscale": "FairScale",
    "ignite": "Ignite",
    "composer": "Composer",
    "mmengine": "MMEngine",
    "detectron2": "Detectron2",
    "fastai": "fastai",
    "nemo": "NeMo",
    "torchtitan": "torchtitan",
    "fairseq": "fairseq",
    "torch_xla": "torch_xla",
    "torchmetrics": "TorchMetrics",
    "apex": "Apex",
    "nvidia.dali": "DALI",
    "ffcv": "FFCV",
    "webdataset": "WebDataset",
    "streaming": "MosaicML Streaming",
    "torch.nn.parallel.DistributedDataParallel": "DDP",
    "torch.distributed.fsdp.FullyShardedDataParallel": "FSDP1",
    "torch.distributed.fsdp.fully_shard": "FSDP2",
    "torch.distributed.tensor": "tensor parallelism",
    "torch.distributed.pipelining": "pipeline parallelism",
    "torch.distributed.rpc": "RPC",
}
"""Names of packages, and of torch's own ways, as users call them."""
DEVICES = ("set_device", "device_id", "device_ids", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK")
OF_SEVERAL = frozenset({"per", "num", "n", "number", "count", "memory", "mem", "utilization"})
"""Words of names such as ``samples_per_gpu``, which select no GPU."""
LOADS = ("load", "from_pretrained", "load_file", "load_state_dict", "load_checkpoint")
"""Functions that read a model or its state from a file."""
IN_PARTS = ("HfDeepSpeedConfig", "Init", "GatheredParameters")
HOLDS_BACK = (
    *("no_sync", "no_backward_sync", "require_backward_grad_sync"),
    "set_requires_gradient_sync",
)
OF_DEEPSPEED = frozenset(
    text
    for key in ("gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu")
    for text in (f"'{key}'", f"{key}()", f"set_{key}()")
)
"""Keys of DeepSpeed's config, and the methods of its engine that give or set them."""
AHEAD = "non_blocking=True"
SETTINGS = ("torch.backends.", "os.environ[")

Fact = TypeVar("Fact")
At = Callable[[ast.AST, Scope], SourceLine]


def read(script: Path, folders: Sequence[Path]) -> Script:
    """Read a script, and the modules that it imports from its folder or from ``folders``.

    ``folders`` are those that the launch line puts on the path of imports. Files that cannot be
    read are in ``unseen``; this never raises.
    """
    modules = Modules.read(script, folders)
    marks = rank_names(modules.found)
    walks = [Walk(module, marks) for module in modules.found]
    program = Program(walks)
    lines = {walk.scopes[0].module: _Lines(walk.scopes[0].module) for walk in walks}

    def at(node: ast.AST, scope: Scope) -> SourceLine:
        return lines[scope.module].at(node, scope.name)

    named = _first_lines(walks, at)
    layers = [*islice(unused_layers(walks, program), MOST_FACTS)]
    classes = {
        node.name
        for walk in walks
        for node in walk.scopes[0].module.nodes
        if isinstance(node, ast.ClassDef)
    }
    on_cuda = {
        call.method
        for call in program.calls
        if call.method in classes and "cuda" in source(call.node)
    }
    return Script(
        files=tuple(module.shown for module in modules.found),
        lines=sum(len(module.lines) for module in modules.found),
        imports=_first(_imports(walks, at)),
        calls=_first(_call(call, program, at) for call in program.calls if _kept(call, program)),
        loops=_first(_loops(program, at)),
        settings=_first(_settings(program, at)),
        datasets=_first(
            one for walk in walks for one in datasets(walk.scopes[0], program, at, on_cuda)
        ),
        constant_seeds=_first(
            SourceSeed(function=name, at=at(node, scope), by_worker=by_worker)
            for name, node, scope, by_worker in constant_seeds(program)
        ),
        over_own_keys=_first(
            SourceKeys(at=at(call.node, call.scope), key=at(key, scope))
            for call, key, scope in over_own_keys(program)
        ),
        sharding_calls=_first(
            SourceSharding(at=at(call.node, call.scope), model=model)
            for call, model in _sharding(program)
        ),
        own_rates=_first(at(one.node, one.scope) for one in own_rates(program)),
        scales_by_ranks=next(
            (at(one.node, one.scope) for one in [scales_by_ranks(program)] if one is not None),
            None,
        ),
        still_epochs=_first(at(one.node, one.scope) for one in _still_epochs(program)),
        own_stops=_first(at(one.node, one.scope) for one in own_stops(program)),
        same_noise=_first(
            SourceNoise(at=at(call.node, call.scope), seed=at(seed.node, seed.scope))
            for call, seed in same_noise(program)
        ),
        token_means=_first(
            SourceTokenMean(
                at=at(one.loss, one.scope),
                back=at(one.back.node, one.back.scope),
                alike=_cut(one.alike),
            )
            for one in token_means(program)
        ),
        precisions=_first(
            SourcePrecision(
                at=at(one.node, one.scope), values=one.values, flag=one.flag, own=one.own
            )
            for one in precisions(program)
        ),
        frozen_checkpoints=_first(
            SourceFrozen(at=at(call.node, call.scope), frozen=at(node, scope))
            for call, node, scope in reentrant(program)
        ),
        schedules_of_one_rank=_first(
            SourceSchedule(
                at=at(one.made.node, one.made.scope),
                name=one.name,
                counts=at(one.counts, one.scope),
            )
            for one in of_one_rank(program)
        ),
        restored=_first(at(one.node, one.scope) for one in restored(program)),
        own_batches=_first(
            SourceBatches(loop=at(loop.node, loop.scope), at=at(made.node, made))
            for loop, made in own_batches(program)
        ),
        plain_samplers=_first(
            SourceSampler(loader=at(loader.node, loader.scope), at=at(node, scope))
            for loader, node, scope in plain_samplers(program)
        ),
        mixed_layers=_first(
            SourceMixture(at=at(one.node, one.scope), trained=one.trained)
            for one in mixed_layers(program)
        ),
        own_averaging=_own_averaging(program, at),
        past_wrapper=_first(at(one.node, one.scope) for one in past_wrapper(program)),
        unused_layers=_first(at(one.node, one.scope) for one in layers if not one.unless),
        switched_layers=_first(
            SourceSwitch(
                at=at(one.node, one.scope),
                uses=tuple(tuple(map(_test, tests)) for tests in one.unless),
            )
            for one in layers
            if one.unless
        ),
        kept_losses=_first(at(one.node, one.scope) for one in kept(program)),
        splits=_first(at(node, scope) for node, scope in splits(program)),
        loads_on_one_rank=next(
            (
                at(call.node, call.scope)
                for call in program.calls
                if call.method in LOADS and any(one.kind == "one-rank" for one in call.around)
            ),
            None,
        ),
        names_device=named.get("names_device"),
        names_set_epoch=named.get("names_set_epoch"),
        names_end=named.get("names_end"),
        fills_in=named.get("fills_in"),
        in_parts=named.get("in_parts"),
        holds_back=named.get("holds_back"),
        copies_ahead=named.get("copies_ahead"),
        accumulates=named.get("accumulates"),
        names_deepspeed_keys=named.get("names_deepspeed_keys"),
        names_pinning=named.get("names_pinning"),
        broken=tuple(modules.broken),
        unseen=tuple(modules.unseen),
    )


class _Lines:
    """The statements of a module as text."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._statements: dict[int, ast.stmt] = {}
        for node in module.nodes:
            if isinstance(node, ast.stmt):
                # The innermost statement that begins at a line comes last.
                self._statements[node.lineno] = node

    def at(self, node: ast.AST, function: str) -> SourceLine:
        """The line of a node, with the text of its statement."""
        line: int = node.lineno  # type: ignore[attr-defined]
        return SourceLine(
            file=self._module.shown, line=line, text=self._text(node), function=function
        )

    def _text(self, node: ast.AST) -> str:
        first: int = node.lineno  # type: ignore[attr-defined]
        last = node.end_lineno or first  # type: ignore[attr-defined]
        own = self._statements.get(first)
        simple = own is not None and not hasattr(own, "body")
        if own is not None and simple:
            last = own.end_lineno or last
        if last == first or hasattr(node, "body"):
            text = self._module.lines[first - 1].strip()
        else:
            text = source(own if own is not None and simple else node)
        return _cut(text)


def _cut(text: str) -> str:
    return beginning(" ".join(text.split()), LONGEST)


def _first(facts: Iterator[Fact]) -> tuple[Fact, ...]:
    return tuple(islice(facts, MOST_FACTS))


def _first_lines(walks: Sequence[Walk], at: At) -> Mapping[str, SourceLine]:
    """The first line with a name of each kind, by the field of ``Script``."""
    found: dict[str, SourceLine] = {}
    for walk in walks:
        top = walk.scopes[0]
        for node in top.module.nodes:
            for word in _words(node):
                for kind, names in NAMED.items():
                    if kind not in found and names(word):
                        found[kind] = at(node, top)
    return found


def _words(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name | ast.Attribute | ast.arg):
        yield own_name(node) or getattr(node, "arg", "")
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80:
        yield f"'{node.value}'"
        # A help text or a message names nothing.
        yield from [node.value] * (" " not in node.value)
    elif isinstance(node, ast.Call):
        yield f"{own_name(node.func)}()"
        # `model.to(rank)`
        if own_name(node.func) in ("to", "cuda", "device", "set_device"):
            yield from ("device_id" for one in node.args if hints(one))
        yield from (word.arg for word in node.keywords if word.arg == "device_id")
        yield from (f"'{word.arg}'" for word in node.keywords)
        if own_name(node.func) in ("to", "cuda"):
            yield from (one for one in map(ast.unparse, node.keywords) if one == AHEAD)


@lru_cache(maxsize=10_000)
def _names_a_device(name: str) -> bool:
    found = lower(name)
    one_of = bool({"gpu", "devices"} & found) and not OF_SEVERAL & found
    return name in DEVICES or {"local", "rank"} <= found or one_of


@lru_cache(maxsize=10_000)
def _names_accumulation(name: str) -> bool:
    return name.isidentifier() and bool(OF_ACCUMULATION & lower(name))


NAMED: Mapping[str, Callable[[str], bool]] = {
    "names_device": _names_a_device,
    "names_set_epoch": "set_epoch".__eq__,
    "names_end": "destroy_process_group".__eq__,
    "fills_in": "to_empty".__eq__,
    "in_parts": IN_PARTS.__contains__,
    "holds_back": HOLDS_BACK.__contains__,
    "copies_ahead": AHEAD.__eq__,
    "accumulates": _names_accumulation,
    "names_deepspeed_keys": OF_DEEPSPEED.__contains__,
    "names_pinning": "pin_memory".__eq__,
}


def _imports(walks: Sequence[Walk], at: At) -> Iterator[SourceImport]:
    """Each framework once, where it is first imported or used."""
    found: set[str] = set()
    for walk in walks:
        top = walk.scopes[0]
        for node in top.module.nodes:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for name in _names(node):
                tops = [name, *(name.rpartition(".")[0], name.partition(".")[0])]
                known = [FRAMEWORKS[one] for one in map(moved, tops) if one in FRAMEWORKS]
                # Its functions know nothing of other ranks.
                known = [] if name.startswith("torchmetrics.functional") else known
                if name.startswith("transformers.") and name.endswith("Trainer"):
                    known.append("Trainer")
                for framework in known:
                    if framework not in found:
                        found.add(framework)
                        yield SourceImport(framework=framework, at=at(node, top))


def _names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif not node.level and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _kept(call: Call, program: Program) -> bool:
    if call.name == PRINT:
        return not program.replaces_print and any(
            one.node in program.training for one in call.loops
        )
    return matters(call) or (_for_one_rank(call) and program.reached(call) is not None)


def _for_one_rank(call: Call) -> bool:
    return any(block.kind == "one-rank" for block in call.around)


def _call(call: Call, program: Program, at: At) -> SourceCall:
    node = call.node
    given = [
        *((str(number), value) for number, value in enumerate(node.args)),
        *keywords(call, program),
    ][:MOST_ARGUMENTS]
    branches = [block for block in call.around if block.kind in RANK_TESTS]
    around = program.around(call)
    tests = [block for block in around if block.kind == "condition" and block.test]
    left = [block for block in around if block.rest and _leaves_the_step(block)]
    reached = program.reached(call) if _for_one_rank(call) else None
    if reached is None and is_collective(call):
        reached = call
    function = node.func
    on = function.value if isinstance(function, ast.Attribute) else function
    return SourceCall(
        name=call.name or (f".{call.method}" if is_sharded_model(call) else ""),
        at=at(node, call.scope),
        arguments=tuple(_cut(source(value)) for name, value in given if name.isdigit()),
        keywords={name: _cut(source(value)) for name, value in given if not name.isdigit()},
        spread={name: tuple(dict(pairs)) for name, pairs in spread(call, program).items()},
        origins={name: made_by(value, call, program) for name, value in given},
        values={name: text for name, value in given if (text := _assigned(value, call, program))},
        on=call.on,
        made_by=origins(on, call.scope) if variable(on) and call.name.startswith(".") else (),
        assigned=_target(call),
        within=tuple(_within(around, program)),
        test=_cut(_holds(tests[-1], call.scope, program)) if tests else "",
        unless=_cut(source(own)) if left and (own := _own_test(left[-1], call, program)) else "",
        branch=at(branches[-1].node, call.scope) if branches else None,
        always=program.always(call),
        for_some_ranks=call.scope in program.of_some_ranks,
        collective=at(reached.node, reached.scope) if reached is not None else None,
        of_script=program.called(call) is not None,
    )


def _assigned(value: ast.expr, call: Call, program: Program) -> str:
    """The source of what a variable is assigned from, with that of the variables in it.

    That of an argument of its function, where there is one call of it; of a call, what its function
    returns.
    """
    scope = call.scope
    name = variable(value)
    shown = scope.shown(name) if name else ()
    parts = [source(one) for one in shown[:MOST_ASSIGNED]]
    for part in ast.walk(shown[0]) if len(shown) == 1 else ():
        inner = scope.shown(part.id) if isinstance(part, ast.Name) else ()
        if len(inner) == 1:
            parts.append(f"{part.id} = {source(inner[0])}")  # type: ignore[attr-defined]
    parts += map(source, _results(shown[0] if len(shown) == 1 else value, program))
    passed = program.passed(scope)
    parts += (
        f"{part.id} = {source(passed[part.id])}"
        for part in (ast.walk(value) if passed else ())
        if isinstance(part, ast.Name) and part.id in passed
    )
    return _cut("; ".join(parts))


def _results(made: ast.expr, program: Program) -> Sequence[ast.expr]:
    """What a function of the script returns, where it has one such line."""
    called = program.function(made) if isinstance(made, ast.Call) else None
    found = program.results(called) if called is not None else ()
    return found if len(found) == 1 else ()


def _holds(block: Block, scope: Scope, program: Program) -> str:
    """What holds within a branch, or after one that leaves the function.

    Of a variable, what it is assigned from; of a function of the script, what it returns.
    """
    test, negated = block.test, block.rest and _counts(block)
    if negated:
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, negated = test.operand, not negated
    name = variable(test) if test is not None else ""
    shown = scope.shown(name) if name else ()
    test = shown[0] if len(shown) == 1 else test
    results = _results(test, program) if test is not None else ()
    text = source(results[0] if results else test or block.node)
    return f"not ({text})" if negated else text


def _leaves_the_step(block: Block) -> bool:
    return isinstance(block.node, ast.If) and isinstance(
        block.node.body[-1], ast.Continue | ast.Return
    )


def _own_test(block: Block, call: Call, program: Program) -> ast.expr | None:
    """The test of a branch, unless a collective gives it its value on all ranks."""
    if block.test is None:
        return None
    shown = (one for part in ast.walk(block.test) for one in call.scope.shown(variable(part)))
    nodes = {part for one in (block.test, *shown) for part in ast.walk(one)}
    within = (one for one in call.scope.calls if one.node in nodes)
    agreed = any(is_collective(one) or program.reached(one) for one in within)
    return None if agreed else block.test


def _target(call: Call) -> str:
    """The variable that gets the result itself; empty: none does."""
    statement = call.statement
    if isinstance(statement, ast.Assign) and statement.value is call.node:
        return variable(statement.targets[0])
    return ""


def _within(around: Sequence[Block], program: Program) -> Iterator[Within]:
    for block in around:
        if block.kind == "loop":
            if block.node in program.training:
                yield "training"
            else:
                yield "epoch" if block.node in program.epochs else "loop"
        elif block.kind != "condition" or not block.rest or _counts(block):
            yield block.kind


def _counts(block: Block) -> bool:
    """Whether it is for one step in a number of steps, such as those of accumulation."""
    ends = isinstance(block.node, ast.If) and isinstance(block.node.body[-1], ast.Break)
    parts = [*ast.walk(block.shown)] if block.shown is not None and not ends else []
    return any(isinstance(one, ast.Mod) for one in parts) or any(
        own_name(side) == "every" or OF_ACCUMULATION & lower(own_name(side))
        for one in parts
        if isinstance(one, ast.Compare)
        for side in ast.walk(one)
    )


def _loops(program: Program, at: At) -> Iterator[SourceLoop]:
    for statement in program.statements:
        if statement.node in program.training:
            yield SourceLoop(
                at=at(statement.node, statement.scope),
                kind="training",
                exhausts=exhausts(statement, program),
            )
        elif statement.node in program.epochs:
            yield SourceLoop(at=at(statement.node, statement.scope), kind="epoch")


def _settings(program: Program, at: At) -> Iterator[SourceSetting]:
    for statement in program.statements:
        node = statement.node
        if isinstance(node, ast.Assign):
            for target in node.targets:
                name = _setting(target, statement)
                if name.startswith(SETTINGS):
                    yield SourceSetting(
                        name=name,
                        value=_cut(source(node.value)),
                        at=at(node, statement.scope),
                        within=tuple(_within(statement.around, program)),
                        after=_first_cuda(statement, program, at)
                        if name == "os.environ[CUDA_VISIBLE_DEVICES]"
                        else None,
                    )


def _first_cuda(statement: Statement, program: Program, at: At) -> SourceLine | None:
    """The first line that uses CUDA, of those that surely run before a statement."""
    scope, line = statement.scope, statement.node.lineno
    for node in scope.module.tree.body:
        if (
            isinstance(node, ast.Import | ast.ImportFrom)
            and node.lineno < line
            and any(map(USES_AT_IMPORT.match, _names(node)))
        ):
            return at(node, next(one for one in program.scopes if one.module is scope.module))
    earlier = [call for call in scope.calls if call.node.lineno < line]
    if scope.name:
        # The top level of a module runs as it is imported, mostly before any function.
        begin = scope.node.lineno  # type: ignore[attr-defined]
        earlier += [
            one
            for one in program.calls
            if not one.scope.name
            and (one.scope.module is not scope.module or one.node.lineno < begin)
        ]
    for call in earlier:
        found = program.sure(call, uses_cuda)
        if found is not None:
            return at(found.node, found.scope)
    return None


def _test(test: Test) -> SourceTest:
    return SourceTest(
        option=test.option,
        given=test.given,
        operator=test.operator,
        value=test.value,
        negated=test.negated,
    )


def _own_averaging(program: Program, at: At) -> SourceAveraging | None:
    found = own_averaging(program)
    if found is None:
        return None
    return SourceAveraging(
        model=at(found.model.node, found.model.scope),
        average=at(found.average.node, found.average.scope),
        seed=at(found.seed.node, found.seed.scope) if found.seed is not None else None,
    )


def _sharding(program: Program) -> Iterator[tuple[Call, str]]:
    for call in program.calls:
        scope = program.called(call)
        given = call.node.args[0] if call.node.args else None
        model = variable(given) if given is not None else ""
        shards = scope is not None and any(one.name == FULLY_SHARD for one in scope.calls)
        if shards and model and "." not in model:
            yield call, model


RESTORES = ("__init__", "load", "from_", "restore", "resume")
"""Beginnings of the names of functions that set a state, and do not advance it."""


def _still_epochs(program: Program) -> Iterator[Call]:
    for call in program.calls:
        given = call.node.args[0] if call.method == "set_epoch" and call.node.args else None
        if isinstance(given, ast.Attribute) and call.loops:
            sets = [
                one
                for one in program.statements
                if any(
                    isinstance(part, ast.Attribute) and part.attr == given.attr
                    for target in _targets(one.node)
                    for part in ast.walk(target)
                )
            ]
            advances = any(
                not one.scope.name.rpartition(".")[2].startswith(RESTORES)
                or isinstance(one.node, ast.AugAssign)
                for one in sets
            )
            if not advances and not any(one.method == "setattr" for one in program.calls):
                yield call


def _targets(node: ast.stmt) -> Sequence[ast.AST]:
    if isinstance(node, ast.Assign):
        return node.targets
    target = getattr(node, "target", None)
    return [target] if isinstance(target, ast.AST) else []


def _setting(target: ast.expr, statement: Statement) -> str:
    names = statement.scope.names
    if isinstance(target, ast.Subscript) and names.of(target.value) == "os.environ":
        known = isinstance(target.slice, ast.Constant)
        return f"os.environ[{target.slice.value}]" if known else ""  # type: ignore[attr-defined]
    return names.of(target)
