"""Scripts whose ranks join each other, and then train without any exchange of gradients."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass

from ddoctor.script.names import source, variable
from ddoctor.script.own_averaging import GRADIENTS, WEIGHTS
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import RANK_TESTS, Call, Scope, Statement

JOINS = "torch.distributed.init_process_group"
DISTRIBUTED = "torch.distributed."
HARMLESS = frozenset(
    {
        *("barrier", "monitored_barrier", "destroy_process_group", "init_process_group"),
        *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
        *("get_rank", "get_world_size", "is_initialized", "is_available", "get_backend"),
        *("is_torchelastic_launched", "is_nccl_available", "is_gloo_available", "new_group"),
    }
)
OF_TENSORS = frozenset(
    {"all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "broadcast"}
)
"""What also averages a loss for the log."""
EXCHANGES = re.compile(
    r"data_?parallel|^fsdp|^ddp|_ddp|fully_shard|parallelize|replicate|distribute_|device_mesh"
    r"|dtensor|zeroredundancy|averager|local_?sgd|horovod|pipelin|share_memory|tp_plan|rpc"
    r"|flatten_dense|parameters_to_vector|comm_hook",
    re.IGNORECASE,
)
"""Names of what may keep the ranks together."""
MEASURED = frozenset(
    {
        *("loss", "losses", "accuracy", "acc", "correct", "total", "totals", "count", "counts"),
        *("metric", "metrics", "stats", "hits", "seen", "score", "scores", "tally", "error"),
        *("errors", "samples", "tokens", "steps", "seconds", "time", "flag", "stop", "top1"),
        *("perplexity", "mse", "mae", "running", "elapsed", "throughput", "confusion", "finished"),
    }
)
"""Words of what a script averages for its log."""
APART = frozenset(
    {
        *("ensemble", "ensembles", "fold", "folds", "member", "members", "sweep", "trial"),
        *("trials", "actor", "actors", "learner", "federated", "client", "clients", "hogwild"),
        *("population", "islands"),
    }
)
"""Words of scripts that may mean to train a model for each rank."""
PACKAGES = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "torchtext", "torchmetrics", "timm"),
        *("transformers", "tokenizers", "datasets", "peft", "safetensors", "numpy", "scipy"),
        *("pandas", "sklearn", "matplotlib", "PIL", "cv2", "albumentations", "h5py", "lmdb"),
        *("tqdm", "rich", "wandb", "tensorboard", "tensorboardX", "loguru", "psutil", "yaml"),
        *("omegaconf", "hydra", "click", "typer", "fire", "tyro", "absl", "pydantic", "einops"),
        *("packaging", "requests", "__future__"),
    }
)
"""None of them exchanges anything in a loop that the script writes itself."""


@dataclass(frozen=True)
class Alone:
    """A training loop without any exchange."""

    joins: Call
    loop: Statement


def trains_alone(program: Program) -> Alone | None:
    """None: something exchanges gradients or weights, or may do so, or means not to."""
    joins = program.by_name.get(JOINS, ())
    loops = [one for one in program.statements if one.node in program.training]
    if not joins or not loops or any(_for_some_ranks(one, program) for one in loops):
        return None
    modules = {scope.module for scope in program.scopes}
    own = {module.name.partition(".")[0] for module in modules}
    for module in modules:
        packages = {name.partition(".")[0] for name in module.nodes.packages}
        if packages - PACKAGES - own - sys.stdlib_module_names:
            return None
        used = (own_name(node) for node in module.nodes.of(ast.Name, ast.Attribute))
        if any(map(_keeps_together, used)):
            return None
    # A call by the name of what an import calls otherwise as well.
    called = (call.name.rpartition(".")[2] for call in program.calls)
    if any(map(_keeps_together, called)):
        return None
    if any(_may_exchange(call, program) for call in program.calls):
        return None
    return Alone(joins[0], loops[0])


def _keeps_together(name: str) -> bool:
    """Whether a name is of what may keep the ranks together, or means to train them apart."""
    return bool(EXCHANGES.search(name) or APART & lower(name))


def _for_some_ranks(loop: Statement, program: Program) -> bool:
    return bool(RANK_TESTS & {block.kind for block in program.around(loop)}) or (
        loop.scope in program.of_some_ranks
    )


def _may_exchange(call: Call, program: Program) -> bool:
    if not call.name.startswith(DISTRIBUTED) or call.method in HARMLESS:
        return False
    averages = call.name == f"{DISTRIBUTED}{call.method}" and call.method in OF_TENSORS
    return not averages or _of_the_model(call, program)


def _of_the_model(call: Call, program: Program) -> bool:
    """Whether a collective may get gradients or weights."""
    if any(map(_is_gradient, ast.walk(call.scope.node))):
        return True
    given = [*call.node.args, *(one.value for one in call.node.keywords)]
    if _in_own_loop(call, program) or any(map(_names_the_model, given)):
        return True
    return not any(_is_measured(one, call, program) for one in given)


def _is_measured(given: ast.expr, call: Call, program: Program) -> bool:
    """Whether it is a loss or a number for the log: of an argument, what each call passes."""
    if not _is_argument(_first(given), call.scope):
        return _shows_a_number(given, call)
    callers = program.calls_of(call.scope)
    return bool(callers) and not any(
        _in_own_loop(one, program)
        or any(map(_names_the_model, one.node.args))
        or not any(_shows_a_number(argument, one) for argument in one.node.args)
        for one in callers
    )


def _shows_a_number(given: ast.expr, call: Call) -> bool:
    """Whether it, or what it is assigned from, has a loss in it or makes a tensor of numbers."""
    values = (given, *call.scope.shown(variable(given)))
    made = (one for value in values for one in ast.walk(value) if isinstance(one, ast.Call))
    return any(MEASURED & lower(source(value)) for value in values) or any(
        source(one.func) == "torch.tensor" for one in made
    )


def _in_own_loop(call: Call, program: Program) -> bool:
    """Whether it is in a loop that is none of the training, such as over parameters."""
    known = program.training | program.epochs
    return any(loop.node not in known for loop in call.loops)


def _is_gradient(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in GRADIENTS


def _names_the_model(given: ast.expr) -> bool:
    return bool((WEIGHTS | {*GRADIENTS, "model", "flat", "weight"}) & lower(source(given)))


def _first(node: ast.expr) -> str:
    return variable(node).partition(".")[0]


def _is_argument(name: str, scope: Scope) -> bool:
    return scope.variables.get(name) == [None]
