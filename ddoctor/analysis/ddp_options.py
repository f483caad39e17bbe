"""Fixes that change how DDP communicates, in plain torch and in the frameworks that wrap it."""

from __future__ import annotations

from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.models import Fix

TAKES_OPTIONS = (
    "torch.nn.parallel.DistributedDataParallel",
    "accelerate.DistributedDataParallelKwargs",
    "accelerate.utils.DistributedDataParallelKwargs",
)
"""What gets DDP's options in a source, under the same names."""


def no_search(words: FrameworkWords, summary: str, gain: str | None = None) -> Fix:
    """The fix that switches off the search for unused parameters."""
    return Fix.python(
        summary=summary,
        paste=words.of_ddp("find_unused_parameters", False),
        caution="if a rare branch leaves parameters out after all, DDP raises in the next step",
        expected_gain=gain,
        settings=("ddp.find_unused_parameters=false",),
    )


def accumulate(passes: int, *, summary: str, gain: str, caution: str = "") -> Fix:
    """The fix that reduces gradients once in this number of backward passes."""
    return Fix.python(
        summary=summary,
        paste=(
            "from contextlib import nullcontext\n\n"
            "for number, batch in enumerate(loader, 1):\n"
            f"    last = number % {passes} == 0\n"
            "    with nullcontext() if last else model.no_sync():\n"
            f"        loss = compute_loss(model(batch)) / {passes}\n"
            "        loss.backward()\n"
            "    if last:\n"
            "        optimizer.step()\n"
            "        optimizer.zero_grad()"
        ),
        caution=caution,
        expected_gain=gain,
    )


def larger_batch(summary: str, gain: str | None = None) -> Fix:
    """The fix that gives each rank more work between two communications."""
    return Fix.python(
        summary=summary,
        paste="loader = DataLoader(dataset, batch_size=2 * batch_size, sampler=sampler)",
        caution="takes more memory; adapt the learning rate and its schedule to the batch",
        expected_gain=gain,
    )


JOIN = Fix.python(
    summary="or use Join, so that ranks without batches join the collectives of the others",
    paste=(
        "from torch.distributed.algorithms.join import Join\n\n"
        "with Join([model]):  # of DDP\n"
        "    for batch in loader:"
    ),
    caution="works with DDP and ZeroRedundancyOptimizer only; costs a collective per step",
)
"""The fix for ranks with different numbers of steps."""
