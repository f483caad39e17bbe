"""Facts about the models, the loaders and torch's settings, gathered on request."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from itertools import islice
from math import isfinite
from statistics import median
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parallel import DistributedDataParallel

from ddoctor.evidence.loading import FirstInputs
from ddoctor.evidence.steps import Growth
from ddoctor.evidence.training import RankFlags
from ddoctor.evidence.wrapping import BufferSum, ParameterSum, Wrapper
from ddoctor.recorder import compilations, user_calls
from ddoctor.recorder.graph import Graph
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.inspection import Inspection
from ddoctor.recorder.learning_rates import LearningRates
from ddoctor.recorder.optimizer_gradients import OptimizerGradients
from ddoctor.recorder.outermost import Outermost
from ddoctor.recorder.overwritten import Overwritten
from ddoctor.recorder.remade import Remade
from ddoctor.recorder.repeats import Repeats
from ddoctor.recorder.replicas import Replicas
from ddoctor.recorder.state_dicts import StateDicts
from ddoctor.recorder.untrained import Untrained

FSDP = {"FSDPModule": "fsdp2", "FullyShardedDataParallel": "fsdp1"}
SHARDING = {"FULL_SHARD": "all", "SHARD_GRAD_OP": "gradients", "HYBRID_SHARD": "within-hosts"}
"""FSDP1's names of the sharding strategies."""
CHECKSUM_BINS = 8
MOST_BUFFERS = 64
ESTIMATES = ("_u", "_v")
"""Ends of the names of singular vectors (torch/nn/utils/spectral_norm.py)."""
MOST_DEPTH = 20_000
MIB = 2**20


class Checksum(NamedTuple):
    """What the parameters of a model add up to."""

    sums: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    """Sums of their magnitudes."""
    spoiled: bool = False
    """Whether trained ones are NaN."""
    buffers: tuple[BufferSum, ...] = ()
    parameters: tuple[ParameterSum, ...] = ()


def wrappers(
    outermost: Outermost,
    inspection: Inspection,
    checksums: Mapping[int, Checksum],
    untrained: Untrained,
    logged: Mapping[int, Mapping[str, Any]],
) -> Iterator[Wrapper]:
    """Each outermost model; ``checksums`` and ``logged``: as of these functions."""
    for root in list(outermost.roots.values()):
        inner = [one for one in root.modules() if isinstance(one, DistributedDataParallel)]
        model = inner[0] if inner else root
        sums = checksums.get(id(root), Checksum())
        log = logged.get(id(model), {})
        found = _wrapper(
            model, inspection, outermost.updated(), inspection.number(model), sums, log
        )
        yield replace(
            found, bypassed=outermost.bypasses(root), untrained=untrained.names.get(id(root), ())
        )


def logged(outermost: Outermost) -> Mapping[int, Mapping[str, Any]]:
    """What DDP logs of each of its models, by its identity.

    Only between the main thread's backward passes: DDP keeps its lock while it waits in one for the
    gradients of other ranks, and for as long as that hangs.
    """
    return {
        id(one): one._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        for root in list(outermost.roots.values())
        for one in root.modules()
        if isinstance(one, DistributedDataParallel)
    }


def plain_models(outermost: Outermost) -> list[nn.Module]:
    """The trained models that no wrapper holds."""
    return [
        root
        for root in outermost.roots.values()
        if not outermost.bypasses(root)
        and not any(isinstance(one, DistributedDataParallel) for one in root.modules())
        and not fsdp_units(root.modules())
    ]


def _wrapper(
    model: nn.Module,
    inspection: Inspection,
    updated: Set[int],
    number: int | None,
    checksum: Checksum,
    logged: Mapping[str, Any],
) -> Wrapper:
    parameters = list(model.parameters())
    buffers = dict(model.named_buffers())
    ddp: Any = model if isinstance(model, DistributedDataParallel) else None
    bare = model.module if isinstance(model, DistributedDataParallel) else model
    modules = list(bare.modules())
    units = fsdp_units(modules)
    kind = "ddp" if ddp is not None else max(units, default="none")
    none: tuple[str, ...] = ()
    of_ddp = number if ddp is not None else None
    never, sometimes = (none, none) if of_ddp is None else inspection.unused(of_ddp, updated)
    sizes = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or ""
    inner = getattr(bare, "_orig_mod", bare)
    block, blocks = _blocks(modules) if kind.startswith("fsdp") else ("", None)
    return Wrapper(
        rank=0,
        kind=kind,  # type: ignore[arg-type]
        name=_own_class(getattr(inner, "module", inner) if kind == "fsdp1" else inner).__name__,
        parameters=sum(one.numel() for one in parameters),
        parameter_bytes=sum(one.numel() * one.element_size() for one in parameters),
        trainable_bytes=sum(
            one.numel() * one.element_size() for one in parameters if one.requires_grad
        ),
        buffers=len(buffers),
        buffer_bytes=sum(one.nbytes for one in buffers.values()),
        largest_buffer=max(buffers, key=lambda name: buffers[name].nbytes, default=""),
        batch_norms=sum(isinstance(one, _BatchNorm) for one in modules),
        sync_batch_norms=sum(isinstance(one, nn.SyncBatchNorm) for one in modules),
        units=len(units),
        sharding=_sharding(modules),  # type: ignore[arg-type]
        block=block,
        blocks=blocks,
        checksum=checksum.sums,
        checksum_scale=checksum.scales,
        spoiled=checksum.spoiled,
        buffer_sums=checksum.buffers,
        parameter_sums=checksum.parameters,
        find_unused_parameters=getattr(ddp, "find_unused_parameters", None),
        static_graph=getattr(ddp, "static_graph", None),
        broadcast_buffers=getattr(ddp, "broadcast_buffers", None),
        bucket_cap_mb=ddp.bucket_bytes_cap / 2**20 if ddp is not None else None,
        bucket_bytes=tuple(int(one) for one in sizes.split(",") if one.strip().isdigit()),
        comm_hook=str(logged.get("comm_hook", "")),
        reduction_seconds=logged.get("avg_backward_comm_time", 0) / 1e9,
        inspected_steps=inspection.steps if of_ddp is not None else 0,
        table_bytes=sum(one.nbytes for one in inspection.tables(of_ddp)),
        table_rows=round(inspection.table_rows(of_ddp), 4),
        discarded=round(inspection.discarded(number), 4) if number is not None else 0.0,
        unused=never,
        unused_bytes=sum(one.nbytes for name, one in bare.named_parameters() if name in never),
        sometimes_unused=sometimes,
    )


def fsdp_units(modules: Iterable[nn.Module]) -> list[str]:
    """Which FSDP wraps each module that one does."""
    # By name: the classes have lain in several places of torch.
    names = (kind.__name__ for one in modules for kind in type(one).__mro__)
    return [FSDP[name] for name in names if name in FSDP]


def _sharding(modules: list[Any]) -> str:
    """The sharding strategy from FSDP's internal state; there is no public function for it."""
    with suppress(AttributeError, KeyError):
        for module in modules:
            if hasattr(module, "sharding_strategy"):
                offloaded = module.cpu_offload.offload_params
                return "" if offloaded else SHARDING.get(module.sharding_strategy.name, "")
        states = [one._get_fsdp_state() for one in modules if hasattr(one, "_get_fsdp_state")]
        groups = [one._fsdp_param_group for one in states if one._fsdp_param_group is not None]
        if not groups or any("CPU" in type(one.offload_policy).__name__ for one in groups):
            return ""
        if any(one._is_hsdp for one in groups):
            return "within-hosts"
        # By default the outermost keeps its parameters.
        return "all" if any(one._reshard_after_forward for one in groups) else "gradients"
    return ""


def _own_class(module: nn.Module) -> type[Any]:
    """The class in the user's source; FSDP2 replaces it with a class that it creates."""
    kind = type(module)
    return kind.__bases__[1] if kind.__bases__[0].__name__ == "FSDPModule" else kind


def _blocks(modules: list[nn.Module]) -> tuple[str, int | None]:
    """The class that the model repeats, and how often. Among several, the class whose unnested
    modules hold most parameters."""
    by_class: dict[type[Any], list[nn.Module]] = {}
    inside: dict[type[Any], set[int]] = {}
    for module in modules:
        kind = _own_class(module)
        if not module._modules or kind in (nn.ModuleList, nn.ModuleDict):
            continue
        if id(module) in inside.setdefault(kind, set()):
            continue
        by_class.setdefault(kind, []).append(module)
        inside[kind].update(id(one) for one in module.modules())
    held = {
        kind: sum(one.numel() for module in found for one in module.parameters())
        for kind, found in by_class.items()
        if len(found) > 1
    }
    if not held:
        return "", 1
    most = max(held, key=lambda kind: held[kind])
    # FSDP1 may have put all parameters into one of its own.
    return (most.__name__, len(by_class[most])) if held[most] else ("", None)


@harmless
def checksums(outermost: Outermost, replicas: Replicas) -> dict[int, Checksum]:
    """Those of each outermost model, by its identity; no sums where FSDP shards it.

    To be called between two steps, where no other code changes them.
    """
    found = {id(one): _checksum(one) for one in list(outermost.roots.values())}
    for model in plain_models(outermost):
        known = found[id(model)]
        if known.sums:
            found[id(model)] = known._replace(parameters=tuple(replicas.sums(model)))
    return found


def _sharded(model: nn.Module) -> bool:
    return bool(fsdp_units(model.modules()))


def _checksum(model: nn.Module) -> Checksum:
    parameters: list[Any] = list(model.parameters())
    spoiled = any(_spoiled(one) for one in parameters if one.requires_grad)
    if _sharded(model):
        return Checksum(spoiled=spoiled)
    sums, scales = [0.0] * CHECKSUM_BINS, [0.0] * CHECKSUM_BINS
    with torch.no_grad():
        for number, one in enumerate(parameters):
            # A DTensor may be a shard, and its sum a collective.
            if hasattr(one, "placements"):
                continue
            values = one.detach().double()
            sums[number % CHECKSUM_BINS] += float(values.sum())
            scales[number % CHECKSUM_BINS] += float(values.abs().sum())
    # Weights that are no numbers any more can be compared with nothing.
    if not isfinite(sum(scales)):
        return Checksum(spoiled=spoiled)
    buffers = tuple(islice(_buffers(model), MOST_BUFFERS))
    return Checksum(tuple(sums), tuple(scales), spoiled, buffers)


def _buffers(model: nn.Module) -> Iterator[BufferSum]:
    """Statistics of a norm differ between ranks, and may; so do estimates of a spectral norm."""
    for prefix, module in model.named_modules():
        if "parametrizations" in prefix:
            continue
        for name, one in module._buffers.items():
            kept = one is not None and name not in module._non_persistent_buffers_set
            if name.endswith(ESTIMATES) or isinstance(module, _NormBase):
                continue
            if kept and one.is_floating_point():
                values = one.detach().double()
                yield BufferSum(
                    name=f"{prefix}.{name}".lstrip("."),
                    elements=values.numel(),
                    sum=float(values.sum()),
                    magnitude=float(values.abs().sum()),
                )


def _spoiled(parameter: Any) -> bool:
    """Whether a number in it, or in this rank's shard of it, is NaN."""
    own = getattr(parameter, "_local_tensor", parameter).detach()
    # Of a sum, no tensor as large as the parameter has to be made.
    summable = own.is_floating_point() and own.dtype.itemsize > 1
    return summable and bool(own.sum().isnan())


def inputs(outermost: Outermost) -> FirstInputs | None:
    """The first inputs of the models; None: not all could be read."""
    prints = tuple(outermost.inputs)
    if not prints or not all(prints):
        return None
    return FirstInputs(
        rank=0,
        batches=prints,
        random=outermost.random,
        origins=user_calls.origins(outermost.calls),
    )


def flags(
    outermost: Outermost,
    autocast: str,
    graph: Graph,
    gradients: OptimizerGradients,
    repeats: Repeats,
    remade: Remade,
    rates: LearningRates,
    overwritten: Overwritten,
    state_dicts: StateDicts,
) -> RankFlags:
    """Torch's current settings, and what the first steps showed."""
    roots = list(outermost.roots.values())
    modules = [one for root in roots for one in root.modules()]
    dtypes = [str(one.dtype).removeprefix("torch.") for root in roots for one in root.parameters()]
    on_gpu = any(one.is_cuda for root in roots for one in root.parameters())
    cudnn: Any = torch.backends.cudnn
    return RankFlags(
        rank=0,
        device_name=torch.cuda.get_device_name() if on_gpu else "",
        capability=torch.cuda.get_device_capability() if on_gpu else None,
        parameter_dtype=max(set(dtypes), key=dtypes.count) if dtypes else "",
        autocast=autocast,
        matmul_precision=torch.get_float32_matmul_precision(),
        cudnn_benchmark=cudnn.benchmark if on_gpu else None,
        cudnn_deterministic=cudnn.deterministic if on_gpu else None,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        anomaly=torch.is_anomaly_enabled(),
        convolutions=sum(isinstance(one, _ConvNd) for one in modules),
        input_shapes=len(outermost.shapes),
        compiled=any(
            hasattr(one, "_orig_mod") or getattr(one, "_compiled_call_impl", None) is not None
            for one in modules
        ),
        operations=graph.operations,
        graph_parameters=graph.parameters,
        without_gradients=gradients.missing,
        never_zeroed=gradients.never_zeroed,
        zero_gradients=gradients.all_zero,
        given_up=compilations.given_up() or (),
        repeat=repeats.told(),
        remade=remade.found,
        remade_at=remade.line(),
        evaluation_mode=outermost.evaluation_mode(),
        zero_steps=rates.zero_steps,
        evaluations=overwritten.evaluations,
        evaluations_with_changes=overwritten.changed,
        changed_otherwise=overwritten.changed_otherwise,
        not_loaded=state_dicts.not_loaded,
        casts=graph.casts,
        cast_parameters=graph.cast_parameters,
        cast_bytes=graph.cast_bytes,
    )


def device(outermost: Outermost) -> str:
    """The device of the models."""
    for root in outermost.roots.values():
        for one in root.parameters():
            return f"cuda:{one.device.index}" if one.is_cuda else one.device.type
    return "cpu"


def between_steps(outermost: Outermost) -> float | None:
    """MiB allocated on the GPU, without the gradients that are still alive; None: no GPU."""
    parameters = [one for root in outermost.roots.values() for one in root.parameters()]
    if not any(one.is_cuda for one in parameters):
        return None
    gradients = [getattr(one.grad, "_local_tensor", one.grad) for one in parameters]
    held = sum(one.nbytes for one in gradients if one is not None)
    return float(torch.cuda.memory_allocated() - held) / MIB


def with_device(growth: Growth) -> Growth:
    """The same with the allocator's statistics of the rank's GPU, if it has one."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        return growth
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return replace(
        growth,
        device_peak=torch.cuda.max_memory_allocated() / MIB,
        device_reserved=torch.cuda.max_memory_reserved() / MIB,
        device_total=total / MIB,
    )


def graphs() -> tuple[int, int]:
    """The number of live tensors with an autograd graph, and the longest chain of additions behind
    one."""
    # gc.get_objects() would hold the tuples too that other threads are building, and so break them.
    classes = (torch.Tensor, *torch.Tensor.__subclasses__())
    tensors = [one for one in gc.get_referrers(*classes) if issubclass(type(one), torch.Tensor)]
    with_graph = [one for one in tensors if one.grad_fn is not None and not _fake(one)]
    depth = max((_depth(one.grad_fn) for one in with_graph if one.numel() == 1), default=0)
    return len(with_graph), depth


def _fake(tensor: torch.Tensor) -> bool:
    """Whether torch.compile keeps it, which traces with tensors that have no numbers."""
    return type(tensor).__module__.startswith("torch._subclasses")


def _depth(node: Any) -> int:
    """Length of a chain of additions, as ``total = total + loss`` builds it."""
    depth = 0
    while node is not None and depth < MOST_DEPTH:
        sums = [
            following
            for following, _ in node.next_functions
            if following is not None and following.name().startswith("AddBackward")
        ]
        if not sums:
            return depth
        node, depth = sums[0], depth + 1
    return depth


def worker_need(waits: list[tuple[int, float, bool]], step_seconds: list[float]) -> float:
    """Seconds within which the loader must deliver a batch, so that no step waits for it."""
    steps = max(1, len({step for step, *_ in waits}))
    batches_per_step = len(waits) / steps
    typical = median(step_seconds) if step_seconds else 0.0
    return max(1e-4, typical / max(1.0, batches_per_step))
