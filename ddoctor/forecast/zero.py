"""The memory that DeepSpeed's ZeRO takes for a model, by DeepSpeed's own allocations.

Sources: deepspeed/runtime/zero (0.19), stage_1_and_2.py for stages 1 and 2, stage3.py for stage 3;
each constant and term names its function. Compared with DeepSpeed on CPU ranks, the memory is
right to 6 % (tests/forecast/test_zero.py). Sizes are in elements, and memory is in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Strategy, ZeroBuffers
from ddoctor.forecast.closed_form import COMPUTING, ForecastRow, Model
from ddoctor.forecast.optimizers import FLOAT, OPTIMIZERS, SIDE

STAGES: tuple[Strategy, ...] = ("zero-1", "zero-2", "zero-3")
ON_CPU: tuple[Strategy, ...] = ("zero-2-offload", "zero-3-offload", "zero-3-cpu")
ON_NVME: Strategy = "zero-3-nvme"
# deepspeed/runtime/zero/config.py and offload_config.py, its defaults. Stages 1 and 2 overlap as in
# the examples of DeepSpeed and transformers.
USUAL = ZeroBuffers(
    reduce_bucket=500_000_000,
    overlap=True,
    prefetch_bucket=50_000_000,
    max_live=1_000_000_000,
    persistence=100_000,
    sub_group=1_000_000_000,
    nvme_buffer=100_000_000,
)
# offload_config.py: buffers between NVMe and the GPU, those of the optimizer's step (of weights,
# momentum, variance and gradient), and the elements that stay in host memory.
PARAMETER_BUFFERS, OPTIMIZER_BUFFERS, KEPT_IN_HOST = 5, 4, 1_000_000_000
# A transformer's layer has 12 h² parameters, and the largest of its matrices 4 h².
OF_LAYER = 1 / 3
DOUBLE = 8
"""Bytes of a gradient while its norm is taken (get_grad_norm_direct)."""


@dataclass(frozen=True)
class Zero:
    """A plan with DeepSpeed."""

    buffers: ZeroBuffers = USUAL
    strategy: Strategy | None = None
    """The strategy that a configuration file sets; None: the plan recommends one."""


@dataclass(frozen=True, kw_only=True)
class ZeroModel:
    """What ZeRO's memory depends on."""

    trained: float
    """Trained elements."""
    frozen: float = 0.0
    """Bytes of frozen parameters."""
    weight: int
    """Bytes of a weight and of its gradient."""
    optimizer: str
    largest_module: float
    """Elements of the largest module without its submodules, which stage 3 gathers at once."""
    largest_tensor: float
    """Elements of the largest trained parameter."""
    persistent: float = 0.0
    """Elements of the parameters that stay whole at stage 3."""

    @classmethod
    def of(cls, model: Model) -> ZeroModel:
        """Return what is known of a model in numbers, with layers as those of a transformer."""
        weight = COMPUTING[model.precision]
        return cls(
            trained=model.trainable,
            frozen=(model.parameters - model.trainable) * weight,
            weight=weight,
            optimizer=model.optimizer,
            largest_module=OF_LAYER * model.parameters / model.layers,
            largest_tensor=OF_LAYER * model.trainable / model.layers,
        )

    @property
    def whole(self) -> float:
        """Return bytes of all weights."""
        return self.weight * self.trained + self.frozen

    def states(self, share: float) -> float:
        """Return bytes of the optimizer's states of this many elements, which are in fp32."""
        return sum(OPTIMIZERS[self.optimizer].keeps((round(share),), FLOAT))


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What the GPU holds at a moment of the step besides weights, states and activations."""

    phase: Literal["forward", "backward", "reduction", "optimizer", "evaluation"]
    """reduction: of the last gradients, after all activations are gone."""
    gradients: float
    communication: float
    temporaries: float = 0.0

    @property
    def computes(self) -> bool:
        """Whether there are activations."""
        return self.phase in ("forward", "backward", "evaluation")


@dataclass(frozen=True, kw_only=True)
class ZeroMemory:
    """The memory of one rank."""

    parameters: float
    optimizer: float
    """Bytes of master weights and optimizer states on the GPU."""
    moments: tuple[Moment, ...]
    host: float = 0.0
    """Bytes in host memory, pinned buffers included."""
    nvme: float = 0.0


def check_optimizer(name: str) -> None:
    """Check that an optimizer works on flat parameters.

    Raises:
        DoctorError: its states depend on the shapes of matrices, which ZeRO flattens.
    """
    keeps = OPTIMIZERS[name].keeps
    if sum(keeps((SIDE, SIDE), FLOAT)) != sum(keeps((SIDE**2,), FLOAT)):
        raise DoctorError(
            f"--engine deepspeed: {name} needs the shapes of matrices, and ZeRO flattens all "
            "parameters: pass another --optimizer, such as adamw"
        )


def memory(model: ZeroModel, row: ForecastRow, buffers: ZeroBuffers) -> ZeroMemory:
    """Return the memory of a rank under one of ZeRO's strategies."""
    if row.strategy.startswith("zero-3"):
        return _sharded(model, row, buffers)
    return _replicated(model, row, buffers)


def _replicated(model: ZeroModel, row: ForecastRow, buffers: ZeroBuffers) -> ZeroMemory:
    """Return the memory at stage 1 or 2, where each rank has all weights."""
    share, weight = model.trained / row.gpus, model.weight
    offloads, accumulates = row.strategy == "zero-2-offload", row.accumulation > 1
    buckets = weight * buffers.reduce_bucket * (2 if buffers.overlap else 1)  # setup_buckets
    # allreduce_bucket flattens what belongs to several ranks.
    flat = weight * _reduced(model, buffers) if row.gpus > 1 else 0.0
    kept = 0.0 if offloads else weight * share  # copy_grads_in_partition
    held, early = (kept if accumulates else 0.0), _several(model, buffers)
    reduced = held + kept
    waits = row.strategy == "zero-1" and (accumulates or not buffers.overlap)
    if waits:
        # process_gradients reduces none before the last micro-batch, or before its end. What it
        # then copies to a bucket, and to the rank's part, it frees.
        held, early = weight * model.trained, False
        reduced, flat = held, max(flat, kept) - weight * min(buffers.reduce_bucket, model.trained)
        flat = max(flat, 0.0)
    beside = weight * model.largest_tensor if offloads else 0.0  # temp_grad_buffer_for_gpu_offload
    # async_inplace_copy_grad_to_fp32_buffer_from_gpu
    casts = FLOAT * min(model.largest_tensor, share) if offloads else 0.0
    last = Moment(
        phase="reduction",
        gradients=reduced,
        communication=beside + buckets + flat,
        temporaries=casts,
    )
    moments = (
        Moment(
            phase="forward",
            gradients=held if accumulates else 0.0,
            # Only a reduction frees the buckets (_release_ipg_buffers).
            communication=beside + (buckets if waits and accumulates else 0.0),
        ),
        Moment(
            phase="backward",
            gradients=(last.gradients if early else held) + weight * model.largest_tensor,
            communication=last.communication if early else beside + buckets,
            temporaries=casts if early else 0.0,
        ),
        last,
        Moment(
            phase="optimizer",
            gradients=kept,
            communication=beside,
            temporaries=0.0 if offloads else _flat_step(model, share),
        ),
    )
    states = FLOAT * share + model.states(share)
    return ZeroMemory(
        parameters=model.whole,
        optimizer=0.0 if offloads else states,
        moments=moments,
        host=states + _of_host(model, share, accumulates=accumulates) if offloads else 0.0,
    )


def _flat_step(model: ZeroModel, share: float) -> float:
    """Return bytes of temporaries of the optimizer's step at stage 1 or 2."""
    # step frees the 16-bit gradients before the update.
    updating = _update(model, share) - model.weight * share
    return max(_cast(model, share), updating, DOUBLE * min(model.largest_tensor, share))


def _of_host(model: ZeroModel, share: float, *, accumulates: bool) -> float:
    """Return bytes of the host's buffers at stage 2."""
    # single_partition_of_fp32_groups.grad, param_buffer_of_bit16_for_cpu_offload_groups,
    # temp_grad_buffer_for_cpu_offload, and accumulated_grads_in_cpu.
    found = (FLOAT + model.weight) * share + model.weight * model.largest_tensor
    return found + (model.weight * share if accumulates else 0.0)


def _sharded(model: ZeroModel, row: ForecastRow, buffers: ZeroBuffers) -> ZeroMemory:
    """Return the memory at stage 3, where each rank has a share of everything."""
    share, weight = model.trained / row.gpus, model.weight
    offloads, moves = row.strategy != "zero-3", row.strategy in ("zero-3-cpu", ON_NVME)
    kept = 0.0 if offloads else weight * share  # grad_partitions_flat_buffer
    bucket = weight * buffers.reduce_bucket  # _setup_for_real_optimizer
    # _fetch_sub_module_impl prefetches a bucket at each module, so that the gathered parameters
    # reach max_live; AllGatherCoalescedHandle.wait copies each bucket.
    elements = model.whole / weight
    gathered = min(elements, buffers.max_live + model.largest_module)
    gathered += min(elements, buffers.prefetch_bucket)
    live = weight * gathered if row.gpus > 1 or moves else 0.0
    flat = weight * min(buffers.reduce_bucket, model.trained)  # reduce_scatter_coalesced
    step = min(share, buffers.sub_group)
    moments = (
        Moment(phase="forward", gradients=kept, communication=bucket + live),
        Moment(
            phase="backward",
            gradients=kept + weight * model.largest_tensor,
            communication=bucket + live + (flat if _several(model, buffers) else 0.0),
        ),
        Moment(phase="reduction", gradients=kept, communication=bucket + flat),
        Moment(
            phase="optimizer",
            gradients=kept,
            communication=bucket,
            temporaries=0.0 if offloads else max(_cast(model, step), _update(model, step)),
        ),
    )
    states = model.states(share)
    on_gpu = weight * model.persistent + (0.0 if moves else model.whole / row.gpus)
    if not offloads:
        # _create_fp32_partitions: weights in fp32 are their own master weights.
        master = FLOAT * share if weight < FLOAT else 0.0
        return ZeroMemory(parameters=on_gpu, optimizer=master + states, moments=moments)
    # Master weights, and their gradients in fp32.
    host, nvme = 2 * FLOAT * share + states, 0.0
    if row.strategy == ON_NVME:
        nvme = host + model.frozen / row.gpus + (weight * share if share > KEPT_IN_HOST else 0.0)
        host = weight * (PARAMETER_BUFFERS * buffers.nvme_buffer + min(share, KEPT_IN_HOST))
        host += OPTIMIZER_BUFFERS * FLOAT * step
    elif moves:
        host += model.whole / row.gpus
    host += weight * share  # grad_partitions_flat_buffer
    return ZeroMemory(parameters=on_gpu, optimizer=0.0, moments=moments, host=host, nvme=nvme)


def _several(model: ZeroModel, buffers: ZeroBuffers) -> bool:
    """Whether gradients are reduced while there are activations."""
    return model.trained > buffers.reduce_bucket


def _reduced(model: ZeroModel, buffers: ZeroBuffers) -> float:
    """Return the most elements of one reduction: a bucket, or a larger parameter alone."""
    return max(min(buffers.reduce_bucket, model.trained), model.largest_tensor)


def _cast(model: ZeroModel, share: float) -> float:
    """Return bytes of the flattened gradients, and of their copy in fp32 if they have 16 bits."""
    return (model.weight + (FLOAT if model.weight < FLOAT else 0)) * share


def _update(model: ZeroModel, share: float) -> float:
    """Return bytes of the gradients in fp32, and of the updates that some optimizers make."""
    return FLOAT * share * (2 if OPTIMIZERS[model.optimizer].update else 1)
