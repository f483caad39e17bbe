"""Allocators of training runs, sick and sound, whose snapshots are read."""

from __future__ import annotations

from typing import Any

from tests.memory_snapshot import (
    BACKWARD,
    GIB,
    MIB,
    STATES,
    TO_DEVICE,
    Allocator,
    evaluating,
    forward,
)


def trained(steps: int = 30, *, gib: int = 30, **fields: Any) -> Allocator:
    """A sound run after some steps: parameters, states, and a cache of free blocks."""
    made = Allocator(**fields)
    made.alloc(gib * GIB // 3, TO_DEVICE)
    made.step()
    made.alloc(2 * gib * GIB // 3, STATES)
    for _ in range(steps):
        made.step()
    made.segment((2 * GIB, None))
    return made


def fragmented(**fields: Any) -> Allocator:
    made = Allocator(**fields)
    made.alloc(20 * GIB, TO_DEVICE)
    for _ in range(30):
        made.segment((GIB, forward()), (GIB // 2, None))
    made.fail(3 * GIB, forward(), free=GIB)
    return made


def too_large() -> Allocator:
    made = Allocator()
    for _ in range(70):
        made.alloc(GIB, TO_DEVICE)
    made.fail(2 * GIB, TO_DEVICE)
    return made


def first_step() -> Allocator:
    made = Allocator()
    made.alloc(20 * GIB, TO_DEVICE)
    made.step()
    made.alloc(20 * GIB, BACKWARD)
    for _ in range(30):
        made.alloc(GIB, STATES)
    made.fail(GIB, STATES)
    return made


def later() -> Allocator:
    made = trained(gib=60)
    made.alloc(9 * GIB, forward())
    made.fail(GIB, forward())
    return made


def logits() -> Allocator:
    made = trained()
    for _ in range(400):
        made.alloc(100 * MIB, evaluating())
    made.fail(200 * MIB, evaluating(62))
    return made


def graphs(*, fails: bool = True) -> Allocator:
    """A list of losses keeps what each layer has saved."""
    made = trained(0)
    for _ in range(40):
        made.step(kept=[(300 * MIB, forward(line)) for line in (20, 21, 22)])
    if fails:
        made.fail(300 * MIB, forward())
    return made


def flat() -> Allocator:
    return trained(200)


def warming_up() -> Allocator:
    """It allocates in its first steps only."""
    made = trained(0)
    for step in range(60):
        made.step(kept=[(300 * MIB, forward(line)) for line in (20, 21, 22) if step < 12])
    return made


def mostly_cached() -> Allocator:
    made = trained(20)
    for _ in range(100):
        made.segment((GIB // 2, None))
    return made


def expandable() -> Allocator:
    made = trained(20, expandable=True)
    for _ in range(50):
        made.segment((MIB, forward()), (100 * MIB, None))
    return made


def without_history() -> Allocator:
    made = Allocator()
    for _ in range(100):
        made.segment((GIB // 2, []), (GIB // 10, None))
    return made


def one_deep_step() -> Allocator:
    """One forward pass of a hundred equal layers, of which nothing is freed yet."""
    made = Allocator()
    made.alloc(10 * GIB, TO_DEVICE)
    for _ in range(100):
        made.alloc(100 * MIB, forward())
        made.brief(10 * MIB, forward())
    return made


def recovered() -> Allocator:
    """A search for the batch size meets a failure and goes on."""
    made = trained(3)
    made.fail(8 * GIB, forward())
    for _ in range(200):
        made.step()
    return made


def bank() -> Allocator:
    """It keeps the features of each step on purpose, and they fit."""
    made = trained(0)
    for _ in range(40):
        made.step(kept=[(300 * MIB, forward(20))])
    return made


def window() -> Allocator:
    """It keeps the losses of all steps, which are small."""
    made = trained(0)
    for _ in range(60):
        made.step(kept=[(512, forward(line)) for line in (20, 21, 22)])
    return made


def frees_left_out() -> Allocator:
    """As with skip_actions=["free_requested", "free_completed"]."""
    made = graphs(fails=False)
    made.trace = [one for one in made.trace if not one["action"].startswith("free")]
    return made


def empty() -> Allocator:
    return Allocator()
