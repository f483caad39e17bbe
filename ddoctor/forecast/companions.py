"""What DPO and GRPO take besides the step of the trained model: a reference, and generation.

As in TRL's trainers (trl/trainer/dpo_trainer.py, grpo_trainer.py). The reference has the computing
precision, as in LLaMA-Factory, OpenRLHF and verl; TRL keeps the dtype in which it loads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import GPUS_PER_HOST, MemoryParts, Strategy
from ddoctor.forecast.closed_form import COMPUTING, ForecastRow, Model
from ddoctor.forecast.method import Method

# Where the parameters are, and so those of the reference: trl/models/utils.py, prepare_deepspeed,
# gives the reference the file of the trained model at stage 3, and no stage below.
ON_HOST: tuple[Strategy, ...] = ("fsdp-offload", "zero-3-cpu")
ON_NVME: tuple[Strategy, ...] = ("zero-3-nvme",)


@dataclass(frozen=True, kw_only=True)
class Companions:
    """What is on the GPUs besides the trained model, in bytes."""

    reference: int = 0
    """Of the whole reference model."""
    vllm: int = 0
    """Of vLLM on each GPU."""
    cache: int = 0
    """Of the keys and values of one sample while it is generated; 0: vLLM generates."""

    def on_gpu(self, row: ForecastRow) -> int:
        """Return the bytes of one GPU's part of the reference, which is sharded like the model."""
        if row.strategy in (*ON_HOST, *ON_NVME):
            return 0
        if not row.strategy.startswith(("fsdp", "zero-3")):
            return self.reference
        within = row.strategy == "fsdp-hybrid"
        return self.reference // (min(row.gpus, GPUS_PER_HOST) if within else row.gpus)

    def on_host(self, row: ForecastRow) -> int:
        """Return the bytes of the reference that CPU offload keeps in host memory, per rank."""
        return self.reference // row.gpus if row.strategy in ON_HOST else 0

    def on_nvme(self, row: ForecastRow) -> int:
        """Return the bytes of the reference that are on NVMe disks, per rank."""
        return self.reference // row.gpus if row.strategy in ON_NVME else 0

    def added(self, parts: MemoryParts, row: ForecastRow) -> MemoryParts:
        """Return the memory of a step with what stays on the GPU throughout."""
        return msgspec.structs.replace(parts, reference=self.on_gpu(row), generation=self.vllm)

    def generating(
        self, parts: MemoryParts, row: ForecastRow, samples: int, casts: int
    ) -> MemoryParts | None:
        """Return the memory during generation, from that of a step; None: vLLM generates.

        Before a step, transformers generates the ``samples`` of all its micro-batches at once.
        There are no gradients and activations then. ``casts``: bytes of autocast's copies of all
        trained weights, which FSDP makes of gathered ones only.
        """
        if not self.cache:
            return None
        return msgspec.structs.replace(
            parts,
            gradients=0,
            activations=0,
            logits=0,
            unused=0,
            temporaries=0 if row.strategy.startswith("fsdp") else casts,
            generation=self.cache * samples * row.accumulation,
        )


NONE = Companions()


def companions(
    method: Method,
    model: Model,
    *,
    adapted: bool,
    cached: int | None,
    length: int,
    vllm: int | None,
) -> Companions:
    """Return the companions of a model.

    ``adapted``: the reference is the model itself, without its adapters. ``cached``: numbers that
    the model keeps of a token. ``length``: tokens of a sample. ``vllm``: bytes of vLLM on each GPU,
    0 if it runs on others; None: transformers generates.

    Raises:
        DoctorError: what generation takes is not known.
    """
    size = COMPUTING[model.precision]
    if method.generates and vllm is None and cached is None:
        raise DoctorError(
            f"--method {method.text}: the config does not say what generation keeps: pass "
            "--vllm-share"
        )
    caches = method.generates and vllm is None
    return Companions(
        reference=round(model.parameters * size) if method.compares and not adapted else 0,
        vllm=vllm or 0,
        cache=(cached or 0) * length * size if caches else 0,
    )
