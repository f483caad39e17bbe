"""A language model in DDP on 8 H100s, all of it used, and a loss that is averaged once a step."""

from __future__ import annotations

from ddoctor.evidence.wrapping import Calls, CollectiveCalls, Wrapper, Wrapping
from tests.healthy.probes import PLACES
from tests.healthy.steps import COUNT

PARAMETERS = 350_000_000
SUMS = (1_204.25, -311.5, 86.125, 902.75)

SECTIONS = (
    Wrapping(
        wrappers=tuple(
            Wrapper(
                rank=place.rank,
                kind="ddp",
                name="GPT2LMHeadModel",
                parameters=PARAMETERS,
                parameter_bytes=4 * PARAMETERS,
                trainable_bytes=4 * PARAMETERS,
                # Constant: the masks of attention.
                buffers=24,
                buffer_bytes=24 * 2**20,
                checksum=SUMS,
                checksum_scale=(410_000.0,) * len(SUMS),
                find_unused_parameters=False,
                static_graph=False,
                broadcast_buffers=True,
                bucket_cap_mb=25.0,
                bucket_bytes=(2**20, *(25 * 2**20,) * 52, 34_600_000),
                inspected_steps=5,
                buffer_broadcast_seconds=(0.0003,) * COUNT,
            )
            for place in PLACES
        )
    ),
    CollectiveCalls(
        steps=COUNT,
        calls=tuple(
            Calls(
                rank=place.rank,
                operation="all_reduce",
                place="train.py:64",
                of_user=True,
                calls=COUNT,
                bytes=4 * COUNT,
                seconds=0.0002 * COUNT,
            )
            for place in PLACES
        ),
    ),
)
