"""How an option of DDP is written, plainly and in the frameworks that wrap it."""

from __future__ import annotations

from ddoctor.evidence.training import TrainingRun

PLAIN = "model = DistributedDataParallel(model, ..., {option}={value})"

# TrainingArguments of transformers, DistributedDataParallelKwargs of accelerate, and DDPStrategy of
# Lightning, which hands its keywords on.
FRAMEWORKS = {
    "transformers": "TrainingArguments(..., ddp_{option}={value})",
    "accelerate": (
        "Accelerator(..., kwargs_handlers=[DistributedDataParallelKwargs({option}={value})])"
    ),
    "lightning": "Trainer(..., strategy=DDPStrategy({option}={value}))",
}


def written(option: str, value: bool | int, run: TrainingRun | None) -> str:
    """Lines to paste: plain PyTorch's, and those of the frameworks that the script imported."""
    imported = run.framework if run is not None else ""
    lines = [PLAIN.format(option=option, value=value)]
    lines += [
        f"# {framework}: {line.format(option=option, value=value)}"
        for framework, line in FRAMEWORKS.items()
        if framework in imported
    ]
    return "\n".join(lines)
