"""How to write an option of DDP, in plain torch and in the frameworks that wrap it."""

from __future__ import annotations

from ddoctor.evidence.training import TrainingRun

PLAIN = "model = DistributedDataParallel(model, ..., {option}={value})"

# TrainingArguments of transformers, DistributedDataParallelKwargs of accelerate, and DDPStrategy of
# Lightning, which passes its keywords to DDP.
FRAMEWORKS = {
    "transformers": "TrainingArguments(..., ddp_{option}={value})",
    "accelerate": (
        "Accelerator(..., kwargs_handlers=[DistributedDataParallelKwargs({option}={value})])"
    ),
    "lightning": "Trainer(..., strategy=DDPStrategy({option}={value}))",
}


def written(option: str, value: bool | int, run: TrainingRun | None) -> str:
    """Lines to paste: for plain PyTorch, and for the frameworks that the script imported."""
    imported = run.framework if run is not None else ""
    lines = [PLAIN.format(option=option, value=value)]
    lines += [
        f"# {framework}: {line.format(option=option, value=value)}"
        for framework, line in FRAMEWORKS.items()
        if framework in imported
    ]
    return "\n".join(lines)
