"""A plan by which one GPU holds the whole model."""

from __future__ import annotations

from ddoctor.evidence.plan import MemoryParts, Plan, PlanRow, Schedule, StepTime

GB = 10**9

SECTIONS = (
    Plan(
        model="1.2B parameters",
        precision="bf16-mixed",
        optimizer="adamw",
        device="H100 SXM",
        device_memory=84 * GB,
        doubt=1.4,
        activations_known=True,
        rows=(
            PlanRow(
                strategy="ddp",
                gpus=8,
                fit="fits",
                parts=MemoryParts(
                    parameters=5 * GB,
                    gradients=5 * GB,
                    optimizer=10 * GB,
                    activations=10 * GB,
                    logits=2 * GB,
                    temporaries=2 * GB,
                    communication=5 * GB,
                    context=2 * GB,
                ),
                step=StepTime(compute=0.285, exposed=0.015, share_of_peak=0.415),
            ),
        ),
        chosen=0,
        reason="one GPU holds the whole model",
        blocks=("LlamaDecoderLayer",),
        micro_batch=8,
        schedule=Schedule(
            samples=64_000,
            epochs=3,
            global_batch=64,
            steps_per_epoch=1000,
            steps=3000,
            seconds=900,
            source="by roofline",
        ),
        checkpoint=5 * GB,
        checkpoint_bf16=5 * GB // 2,
    ),
)
