"""Which calls of a script matter to a distributed run."""

from __future__ import annotations

import ast
import re

from ddoctor.script.names import source, variable
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Block, Call
from ddoctor.script.values import origins

COLLECTIVES = frozenset(
    f"torch.distributed.{name}"
    for name in (
        *("barrier", "monitored_barrier", "all_reduce", "all_gather", "all_gather_object"),
        *("all_gather_into_tensor", "reduce", "reduce_scatter", "reduce_scatter_tensor"),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "scatter"),
        *("scatter_object_list", "all_to_all", "all_to_all_single"),
    )
)
"""Calls that every rank of a group must make."""
OF_ACCELERATE = ("wait_for_everyone", "gather", "gather_for_metrics", "reduce")
"""Methods of accelerate's Accelerator that are collectives."""
OF_FABRIC = ("all_reduce", "all_gather", "barrier", "broadcast", "save", "load")
"""Methods of Lightning's Fabric that are collectives; the last two end with a barrier."""
OF_LIGHTNING = ("all_gather", "barrier", "broadcast", "reduce", "reduce_boolean_decision")
"""Those of Lightning's strategies; a LightningModule has the first one itself."""
STATES = ("get_model_state_dict", "get_state_dict", "get_optimizer_state_dict")
WHOLE = "full_tensor"
"""A method of DTensor that gathers the parts of all ranks (torch/distributed/tensor/_api.py)."""
FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"

MATTERING = (
    *("torch.distributed.", "torch.utils.data.", "torch.nn.parallel.", "torch.nn.DataParallel"),
    *(
        "torch.save",
        "safetensors.torch.save_file",
        "torch.load",
        "torch.autograd.",
        "torch.use_deterministic_algorithms",
        "torch.set_default_dtype",
        "torch.nn.utils.clip_grad_",
    ),
    *("torch.autocast", "torch.amp.", "torch.cuda.amp.", "torch.set_float32_matmul_precision"),
    *("torch.utils.checkpoint.", "torch.utils.tensorboard.", "torch.device"),
    *("torch.multiprocessing.", "multiprocessing.", "concurrent.futures.ProcessPoolExecutor"),
    *("wandb.init", "accelerate.", "deepspeed.init", "gc.collect", "lightning.", "transformers."),
    *("torch.optim.", "diffusers.optimization.", "datasets.load_dataset"),
    "webdataset.WebDataset",
    *("torch.distributed.checkpoint.", "torch.distributed.fsdp.", "shutil.rmtree"),
    *("peft.", "trl.", "ray.train.", "torchvision.datasets."),
    *("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast"),
)
"""The beginnings of their full names."""
OF_CUDA = frozenset(
    f"torch.cuda.{name}"
    for name in (
        *("set_device", "synchronize", "empty_cache", "init", "is_available", "current_device"),
        *("get_device_name", "get_device_properties", "get_device_capability", "mem_get_info"),
    )
)
OF_EVALUATION = (".validation_step", ".test_step")
"""Methods of Lightning's modules."""
PARSES = ("parse_args_into_dataclasses", "parse_json_file", "parse_yaml_file", "parse_dict")
USES_AT_IMPORT = re.compile(
    r"(bitsandbytes|unsloth|deepspeed|torch\.utils\.cpp_extension"
    r"|mmcv\.(Config|DictAction|cnn|ops|parallel|runner|utils)"
    r"|mmengine\.(runner|model|dist|optim|hooks|evaluator|dataset|device)"
    r"|mm(det|det3d|seg|pose|action|pretrain|ocr|rotate)\.(apis|models|datasets))\b"
)
"""Modules whose import asks ``torch.cuda.is_available()``.

Seen with bitsandbytes 0.50 and mmengine 0.10, which the others import, and in the sources of
unsloth, deepspeed 0.19 (real_accelerator.py) and mmcv 1 (parrots_wrapper.py). torch's
cpp_extension asks it where a CUDA toolkit is installed.
"""
STARTS_CUDA = ("transformers.TrainingArguments", "accelerate.Accelerator")
METHODS = frozenset(
    {
        *(
            "backward",
            "step",
            "item",
            "cpu",
            "set_epoch",
            "no_sync",
            "accumulate",
            "load_state_dict",
        ),
        *("gradient_checkpointing_enable", "cuda", "to", "DistributedSampler"),
        *("set_requires_gradient_sync", "set_is_last_backward", "prepare", "save_to_disk"),
        *("prepare_data_loader", "prepare_model", "prepare_optimizer"),
        *("generate", "save_checkpoint", "get_state_dict", "setup_dataloaders", "setup"),
        *(WHOLE, "set_transform", "with_transform", "join_uneven_inputs", "save_state"),
        *("save_model", "save_16bit_model", "save_pretrained", "set_state_dict_type"),
        *OF_ACCELERATE,
    }
)
"""Methods of any object."""


def matters(call: Call) -> bool:
    """Whether it is kept as evidence."""
    name = call.name
    if name and not name.startswith("."):
        return name in OF_CUDA or name.startswith(MATTERING)
    if call.method in ("to", "cuda"):
        return call.method == "cuda" or any(_is_cuda(one, call) for one in call.node.args)
    if call.method in METHODS:
        return True
    if call.method == "log" and (call.scope.name.endswith(OF_EVALUATION) or is_collective(call)):
        return True
    return _is_of_fabric(call) or _is_of_lightning(call) or is_sharded_model(call)


def is_collective(call: Call) -> bool:
    """Whether all ranks must call it."""
    if any("group" in (word.arg or "") for word in call.node.keywords):
        return False
    if call.name in COLLECTIVES:
        # A positional group, such as of barrier(group), is not told from other arguments.
        return call.method not in ("barrier", "monitored_barrier") or not call.node.args
    if call.method in OF_ACCELERATE:
        return is_accelerator(call)
    if call.method == "log" and call.scope.name.endswith("_step"):
        # lightning/pytorch/core/module.py, log: it reduces the value over all ranks.
        return any(
            word.arg == "sync_dist" and source(word.value) == "True" for word in call.node.keywords
        )
    if call.method == WHOLE:
        return bool(call.on) and not any(map(_asks_for_parts, call.around))
    if _is_of_fabric(call) or _is_of_lightning(call):
        return True
    if call.name == f"{FSDP}.state_dict_type":
        return any("FULL_STATE_DICT" in source(one) for one in call.node.args)
    if call.name == f"{FSDP}.summon_full_params":
        return True
    full = any("full_state_dict=True" in _shown(word.value, call) for word in call.node.keywords)
    return (call.method in STATES and full) or is_sharded_model(call)


def _asks_for_parts(block: Block) -> bool:
    """Whether a test asks if a tensor is in parts at all, as ``isinstance(one, DTensor)``."""
    text = source(block.test) if block.kind == "condition" and block.test is not None else ""
    return "DTensor" in text or WHOLE in text


def _shown(value: ast.expr, call: Call) -> str:
    """The source of an argument, or of what the variable is assigned from."""
    name = variable(value)
    return " ".join(map(source, (value, *(call.scope.shown(name) if name else ()))))


def uses_cuda(call: Call) -> bool:
    """Whether it makes the process choose its GPUs."""
    moved = call.method == "to" and any(map(names_cuda, call.node.args))
    on_gpu = call.method == "cuda" or moved
    # transformers' parser makes the TrainingArguments, which choose the device.
    by_parser = call.method in PARSES and "TrainingArguments" in call.scope.names.all
    return on_gpu or by_parser or call.name in OF_CUDA or call.name in STARTS_CUDA


def is_accelerator(call: Call) -> bool:
    """Whether it is a method of accelerate's Accelerator or PartialState."""
    return _is_of(call, "accelerator", ("accelerate.",))


def _is_of_fabric(call: Call) -> bool:
    packages = ("lightning.", "lightning_fabric.")
    return call.method in OF_FABRIC and _is_of(call, "fabric", packages)


def _is_of_lightning(call: Call) -> bool:
    if call.method not in OF_LIGHTNING:
        return False
    if call.on.endswith("trainer.strategy"):
        return True
    packages = {name.partition(".")[0] for name in call.scope.module.nodes.packages}
    of_module = call.on == "self" and call.method == OF_LIGHTNING[0]
    return of_module and bool({"lightning", "pytorch_lightning"} & packages)


def _is_of(call: Call, name: str, packages: tuple[str, ...]) -> bool:
    """Whether it is a method of an object that is called so, or that one of the packages makes."""
    if call.on.rpartition(".")[2] == name:
        return True
    function = call.node.func
    on = function.value if isinstance(function, ast.Attribute) else None
    made = origins(on, call.scope) if on is not None and call.on else ()
    return any(one.startswith(packages) for one in made)


def is_sharded_model(call: Call) -> bool:
    """Whether it runs a model of FSDP1, or gathers its state."""
    function = call.node.func
    if isinstance(function, ast.Attribute) and function.attr == "state_dict":
        return _only_fsdp(function.value, call)
    return isinstance(function, ast.Name) and not call.name and _only_fsdp(function, call)


def _only_fsdp(model: ast.expr, call: Call) -> bool:
    """Whether all that is known of the variable's last value is FSDP1."""
    name = variable(model)
    values = call.scope.assigned(name) if name else ()
    return bool(values) and values[-1] is not None and origins(values[-1], call.scope) == (FSDP,)


def _is_cuda(argument: ast.expr, call: Call) -> bool:
    """Whether an argument of ``to`` is surely the GPU, or the device of the script's options."""
    if names_cuda(argument) or "'cuda'" in origins(argument, call.scope):
        return True
    # Such as `args.device`, whose value the launch knows.
    of_options = isinstance(argument, ast.Attribute | ast.Subscript)
    return of_options and own_name(argument) == "device"


def names_cuda(argument: ast.expr) -> bool:
    """Whether an argument of ``to`` is surely the GPU: ``"cuda"`` or ``f"cuda:{rank}"``."""
    first = argument.values[0] if isinstance(argument, ast.JoinedStr) and argument.values else None
    text = first if first is not None else argument
    return isinstance(text, ast.Constant) and str(text.value).startswith("cuda")
