"""What a function of the script does around a save, such as to flush a file, is part of it."""

from __future__ import annotations

from msgspec.structs import replace

from ddoctor.analysis.own_loader import OF_THE_STEP, TORN
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import LiveRank

CHECKPOINT, REST = "checkpoint", "rest"


def told(seen: LiveRank) -> LiveRank:
    """The rank, with the other work of functions that save by the name of the checkpoint.

    A function that also leads to the model is the training itself.
    """
    saves = [row for row in seen.activities if row.name == CHECKPOINT and row.calls]
    passes = (row for row in seen.activities if row.name in OF_THE_STEP and row.samples > TORN)
    training = {_function(frame) for row in passes for frame in row.calls}
    saving = {_function(row.calls[max(row.entered, 1) - 1]) for row in saves} - training
    if not saving:
        return seen
    return replace(
        seen,
        activities=tuple(
            replace(row, name=CHECKPOINT)
            if row.name == REST and any(_function(frame) in saving for frame in row.calls)
            else row
            for row in seen.activities
        ),
    )


def _function(frame: Frame) -> tuple[str, str]:
    return frame.file, frame.function
