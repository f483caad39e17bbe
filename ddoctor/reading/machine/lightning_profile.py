"""The table of Lightning's SimpleProfiler: how long each hook took in all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddoctor.evidence.printed_figures import PhaseTimes, PrintedTimes
from ddoctor.reading.machine.kind import Kind

# pytorch_lightning/profilers/simple.py, and profiler/profilers.py before 1.5
HEAD = re.compile(
    r"^\|?\s{0,9}Action\s{0,500}\|\s{0,9}Mean duration \(s\)\s{0,20}\|(?P<cells>.{5,200})$"
)
ROW = re.compile(r"^\|?(?P<name>[^|]{1,1000})\|(?P<cells>[\s\d.e+|%_-]{3,200})$")
NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,15})?(?:e[+-]\d\d)?")
MEAN, CALLS, TOTAL = "Mean duration (s)", "Num calls", "Total time (s)"

EPOCH, BATCH = "run_training_epoch", "run_training_batch"
# By version, the newest first: 1.7, 1.5, before.
LOADER = re.compile(r"\]\.train_dataloader_next$|^fetch_next_train_batch$|^get_train_batch$")
CHECKPOINT = re.compile(r"^\[Callback\]\w{0,99}Checkpoint\b.{0,900}\.on_\w{1,99}$")
HOOK = re.compile(
    r"^\[(?:LightningModule|Callback)\](?!\w{0,99}(?:Checkpoint|ProgressBar)\b).{1,900}\.on_\w{1,99}$"
)
SAVE = "save_checkpoint"
MOST_CALLS = 10**12


@dataclass(frozen=True)
class _Action:
    name: str
    seconds: float
    calls: int


def _read(lines: Sequence[str]) -> Iterator[PrintedTimes]:
    actions = {one.name: one for one in _actions(lines)}
    batch, epoch, save = (actions.get(name) for name in (BATCH, EPOCH, SAVE))
    # Of a table that was cut down, the loader's calls say how many batches there were.
    batches = batch or next((one for name, one in actions.items() if LOADER.search(name)), None)
    if batches is None or (batch is None and epoch is None):
        return
    loader, hooks = _of(actions, LOADER), _of(actions, CHECKPOINT)
    # The hooks save through it, and a script may call it as well.
    of_batches = (one for one in actions.values() if one.calls >= batches.calls)
    slowest = max(
        (one for one in of_batches if HOOK.search(one.name)),
        key=lambda one: one.seconds,
        default=None,
    )
    saving = max(hooks or 0.0, save.seconds if save is not None else 0.0)
    yield PrintedTimes(
        tables=(
            PhaseTimes(
                tool="Lightning's profiler",
                count=batches.calls,
                in_all=True,
                whole=max(
                    epoch.seconds if epoch is not None else 0.0,
                    batches.seconds + (loader or 0.0) if batch is not None else 0.0,
                ),
                loader=loader,
                checkpoint=saving or None,
                hook=slowest.name if slowest is not None else "",
                in_hook=slowest.seconds if slowest is not None else 0.0,
                saves=save.calls if save is not None else None,
            ),
        )
    )


def _of(actions: Mapping[str, _Action], names: re.Pattern[str]) -> float | None:
    """The seconds of all these actions; None: there are none."""
    found = [one.seconds for name, one in actions.items() if names.search(name)]
    return sum(found) if found else None


def _actions(lines: Sequence[str]) -> Iterator[_Action]:
    columns: Sequence[str] = ()
    for line in lines:
        if head := HEAD.match(line):
            columns = [MEAN, *(cell.strip() for cell in head["cells"].split("|"))]
        elif (row := ROW.match(line)) and columns:
            cells = [cell.strip() for cell in row["cells"].split("|")]
            numbers = {
                column: float(cell)
                for column, cell in zip(columns, cells, strict=False)
                if NUMBER.fullmatch(cell)
            }
            if MEAN in numbers and TOTAL in numbers:
                mean, seconds = numbers[MEAN], numbers[TOTAL]
                often = numbers.get(CALLS, seconds / mean if mean else 0.0)
                yield _Action(row["name"].strip(), seconds, round(min(often, MOST_CALLS)))


KIND = Kind(
    name="Lightning's profiler",
    holds=("profiler report", "mean duration (s)"),
    begins=re.compile(rf"^.{{0,200}}\bProfiler Report$|{HEAD.pattern}"),
    goes_on=re.compile(r"^-{10,2000}$|^\|?[^|]{1,1000}\|.{3,250}$"),
    read=_read,
    fewest=4,
)
