"""Names that occur in a source: frameworks that are imported, and words that keep a check quiet."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache

from ddoctor.evidence.source_facts import SourceImport
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.source_text import Nodes
from ddoctor.script.names import moved
from ddoctor.script.ranks import hints, lower, own_name
from ddoctor.script.scopes import Walk
from ddoctor.script.source_calls import OF_ACCUMULATION
from ddoctor.script.source_lines import At

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
GIVES_LOCAL_RANK = re.compile(r"\w*LOCAL_?(?:RANK|ID)|get_\w*local_rank|'local_rank'|local_rank=")
COUNTS_GPUS = re.compile(r"get_\w*local_rank|local_process_index|device_count")
LOCAL_OF_SCHEDULERS = re.compile(
    r"'(?:SLURM_LOCALID|OMPI_COMM_WORLD_LOCAL_RANK|MPI_LOCALRANKID|PMI_LOCAL_RANK"
    r"|PALS_LOCAL_RANKID|MV2_COMM_WORLD_LOCAL_RANK)'"
)
OF_SCHEDULERS = re.compile(
    r"'?(?:SLURM|OMPI|PMIX?|MPI|MV2|FLUX|JSM|PALS)_\w+'?|MPI|idr_torch|submitit"
)
IN_PARTS = ("HfDeepSpeedConfig", "Init", "GatheredParameters")
HOLDS_BACK = (
    *("no_sync", "no_backward_sync", "require_backward_grad_sync"),
    "set_requires_gradient_sync",
)
OF_SYNC = frozenset({"ddp", "no", "maybe", "skip", "context", "ctx"})
"""Words besides ``sync`` in the name of a function that does so, as ``ddp_sync(model, last)``."""
OF_DEEPSPEED = frozenset(
    text
    for key in ("gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu")
    for text in (f"'{key}'", f"{key}()", f"set_{key}()")
)
"""Keys of DeepSpeed's config, and the methods of its engine that give or set them."""
POOLS = frozenset({"pooler", "pooler_output", "add_pooling_layer", "'add_pooling_layer'"})
AHEAD = "non_blocking=True"
LESS = re.compile(
    r"lora|peft|quant|bitsandbytes|load_in_|galore|8bit|requires_grad|freeze|offload", re.I
)
"""Words for weights that are not trained, take less, or stay on the host."""
BY_OPTIONS = re.compile(
    r"'?(?:get_)?(?:peft_config|quantization_config|kbit_device_map)(?:'|\(\))?", re.ASCII
)
"""Names of TRL and transformers for what is none unless an option, or another word, asks for it."""


NAMING = (ast.Name, ast.Attribute, ast.arg, ast.Constant, ast.Call)


def first_lines(walks: Sequence[Walk], at: At) -> Mapping[str, SourceLine]:
    """The first line with a name of each kind, by the field of ``Script``."""
    found: dict[str, SourceLine] = {}
    for walk in walks:
        top = walk.scopes[0]
        unread = _unread(top.module.nodes)
        for node in top.module.nodes.of(*NAMING):
            for word in _words(node) if id(node) not in unread else ():
                for kind in _kinds(word):
                    if kind not in found:
                        found[kind] = at(node, top)
    return found


@lru_cache(maxsize=10_000)
def _kinds(word: str) -> Sequence[str]:
    """The kinds that a word names; a script has few words, each many times."""
    return tuple(kind for kind, names in NAMED.items() if names(word))


def _unread(nodes: Nodes) -> Collection[int]:
    """The nodes of statements that only give a variable of a function a device, and nothing reads
    the variable: such as ``local_rank = int(os.environ["LOCAL_RANK"])``."""
    read = {one.id for one in nodes.of(ast.Name) if isinstance(one.ctx, ast.Load)}
    # Another module may read these.
    read |= {name for one in nodes.of(ast.Global) for name in one.names}
    return {
        id(part)
        for function in nodes.of(ast.FunctionDef, ast.AsyncFunctionDef)
        for one in function.body
        if isinstance(one, ast.Assign) and len(one.targets) == 1
        for target in one.targets
        if isinstance(target, ast.Name) and target.id not in read and _names_a_device(target.id)
        for part in ast.walk(one)
    }


def _words(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield f"{node.attr}="
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


@lru_cache(maxsize=10_000)
def _trains_less(name: str) -> bool:
    return LESS.search(name) is not None and not BY_OPTIONS.fullmatch(name)


def _holds_back(name: str) -> bool:
    return name in HOLDS_BACK or ("sync" in lower(name) and bool(OF_SYNC & lower(name)))


NAMED: Mapping[str, Callable[[str], bool]] = {
    "names_device": _names_a_device,
    "gives_local_rank": lambda word: GIVES_LOCAL_RANK.fullmatch(word) is not None,
    "local_of_torchrun": "'LOCAL_RANK'".__eq__,
    "counts_gpus": lambda word: COUNTS_GPUS.fullmatch(word) is not None,
    "local_of_scheduler": lambda word: LOCAL_OF_SCHEDULERS.fullmatch(word) is not None,
    "names_scheduler": lambda word: OF_SCHEDULERS.fullmatch(word) is not None,
    "names_set_epoch": "set_epoch".__eq__,
    "names_end": "destroy_process_group".__eq__,
    "fills_in": "to_empty".__eq__,
    "names_pooler": POOLS.__contains__,
    "takes_hidden_states": "last_hidden_state".__eq__,
    "in_parts": IN_PARTS.__contains__,
    "holds_back": _holds_back,
    "copies_ahead": AHEAD.__eq__,
    "accumulates": _names_accumulation,
    "names_deepspeed_keys": OF_DEEPSPEED.__contains__,
    "names_pinning": "pin_memory".__eq__,
    "trains_less": _trains_less,
}


def frameworks(walks: Sequence[Walk], at: At) -> Iterator[SourceImport]:
    """Each framework once, where it is first imported or used."""
    found: set[str] = set()
    for walk in walks:
        top = walk.scopes[0]
        for node in top.module.nodes.of(ast.Import, ast.ImportFrom):
            for name in imported_names(node):
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


def imported_names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif not node.level and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
