"""A forecast by formulas, in a moment, with the shape of the one on fake tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from ddoctor.evidence.plan import MemoryParts
from ddoctor.forecast.closed_form import ForecastRow, Model
from ddoctor.forecast.model.growth import Growth
from ddoctor.memory_tracking.work import StepWork
from tests.forecast.test_roofline import llama, work

GIB = 2**30
KEPT = {"none": 12.0, "selective:op": 5.0, "every": 2.0}
"""GiB of activations of a sample."""
AGAIN = {"none": 3.0, "selective:op": 3.4, "every": 4.0}
"""Passes, of which the backward pass is two."""
MODEL: Model = llama()


@dataclass(frozen=True, kw_only=True)
class Played:
    """Llama 3.1 8B in mixed precision: 16 bytes per parameter, and activations by the sample."""

    way: ClassVar[str] = "fake tensors"
    doubt: ClassVar[float] = 1.15
    sequence: ClassVar[int] = 8192

    checkpointing: str = "none"
    samples: int = 1
    wasted: float = 0.04
    """What the allocator cannot use, as a share; it differs from step to step."""

    def parts(self, row: ForecastRow) -> MemoryParts:
        size = MODEL.parameters
        stays = row.accumulation > 1 or row.strategy == "ddp"
        found = MemoryParts(
            parameters=round(4 * size / row.shards),
            gradients=round(4 * size / row.shards) if stays else 0,
            optimizer=round(8 * size / row.shards),
            activations=round(self.samples * KEPT[self.checkpointing] * GIB),
            communication=round(2 * size) if row.strategy == "fsdp-gradients" else GIB,
            context=2 * GIB,
        )
        odd = 1 + (self.samples * 7 + row.gpus + len(self.checkpointing)) % 5 / 2
        unused = round(found.total * self.wasted * odd)
        return msgspec.structs.replace(found, unused=unused)

    def growth(self, row: ForecastRow, larger: Played, like: Any = None) -> Growth:
        now, then = self.parts(row), larger.parts(row)
        slope = (then.used - now.used) / (larger.samples - self.samples)
        return Growth(
            samples=self.samples,
            peaks={"backward": now.used},
            slopes={"backward": slope},
            gradients=round(4 * MODEL.parameters / row.shards),
            unused=now.unused / now.used,
        )

    @property
    def work(self) -> StepWork:
        passes = AGAIN[self.checkpointing] / AGAIN["none"]
        return work(round(passes * self.samples * MODEL.work.flops)) if MODEL.work else work(0)

    def work_like(self, other: Played) -> StepWork:
        return self.work

    def nvme(self, row: ForecastRow) -> int:
        return 0

    def host(self, row: ForecastRow) -> int:
        return 0

    def gains(self, row: ForecastRow) -> dict[str, int]:
        return {}

    def moment(self, row: ForecastRow) -> str:
        return "backward pass"

    def most_samples(self, row: ForecastRow, memory: int) -> int:
        return 1

    eager = None
    expandable = False

    def with_expandable(self, row: ForecastRow) -> None:
        return None

    def without_checkpointing(self, row: ForecastRow) -> None:
        return None
