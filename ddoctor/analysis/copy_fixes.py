"""Fixes of copies from the host's memory to the GPU."""

from __future__ import annotations

from ddoctor.models import Fix

WORKERS = 2
"""One makes a batch while that of the other waits; ddoctor run measures how many are enough."""


def pinned(loader: str, settings: tuple[str, ...] = ()) -> Fix:
    """For the batches of this loader."""
    return Fix.python(
        summary="pin the memory of batches, and copy them while the device computes",
        paste=(
            f"DataLoader(…, pin_memory=True)  # {loader}\n"
            "batch = batch.to(device, non_blocking=True)"
        ),
        caution="pinned memory cannot be swapped out",
        settings=settings,
    )


def by_a_loader(line: str) -> Fix:
    """For batches that the loop makes itself; ``line``: the place of the copy, or empty."""
    return Fix.python(
        summary="let workers make the batches, in pinned memory, and copy without waiting",
        paste=(
            f"loader = DataLoader(…, num_workers={WORKERS}, pin_memory=True)\n"
            f"batch = batch.to(device, non_blocking=True){f'  # {line}' if line else ''}"
        ),
        caution="pinned memory cannot be swapped out",
    )


def meanwhile(line: str) -> Fix:
    """For batches in pinned memory, which the computation waits for."""
    return Fix.python(
        summary="copy the next batch on a separate stream, while this one is trained on",
        paste=(
            "copies = torch.cuda.Stream()\n"
            "with torch.cuda.stream(copies):  # for the next batch\n"
            f"    batch = batch.to(device, non_blocking=True){f'  # {line}' if line else ''}\n"
            "torch.cuda.current_stream().wait_stream(copies)  # before it is used\n"
            "batch.record_stream(torch.cuda.current_stream())"
        ),
    )


def fewer_bytes(line: str) -> Fix:
    """For copies that take long at the rate of the bus."""
    return Fix.python(
        summary="copy fewer bytes: images as uint8, other numbers as bfloat16",
        paste=(
            f"batch = batch.to(device, non_blocking=True){f'  # {line}' if line else ''}\n"
            "images = batch.float() / 255  # on the GPU"
        ),
        caution="bfloat16 rounds to 8 bits",
    )
