"""A patient from a seed: the parts, the numbers and the names are drawn, and nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from tests.ward.case import Case, Graded
from tests.ward.drawn.faults import FAULTS
from tests.ward.drawn.loaders import LOADERS
from tests.ward.drawn.loops import LOOPS
from tests.ward.drawn.models import MODELS
from tests.ward.drawn.part import Fault, Loader, Part
from tests.ward.drawn.script import compose, slots
from tests.ward.drawn.traits import TRAITS

SOUND_SHARE = 0.35
DOSES = (1.15, 1.3, 1.6, 2.0)
SAMPLER = Part(
    name="sampler",
    slots={
        "sampler": "sampler = DistributedSampler(data)",
        "reshuffle": "sampler.set_epoch(epoch)",
    },
)
PERSISTENT = Part(name="persistent workers", slots={"persistent": "True"})
NAMES: dict[str, tuple[object, ...]] = {
    "Items": ("Samples", "Records", "Corpus", "TrainSet"),
    "sample": ("sample", "row", "example"),
    "inputs": ("inputs", "x", "features"),
    "work": ("process", "prepare", "augment", "refresh"),
    "optimizer": ("SGD", "Adam", "AdamW"),
    "width": (192, 256, 320),
    "depth": (3, 4, 5),
    "batch": (24, 32, 48),
    "epoch": (60, 100, 400),
    "micros": (2, 4),
    "every": (4, 8),
    "at": (15, 25, 40),
    "rank": (0, 1),
}


@dataclass(frozen=True, kw_only=True)
class Patient:
    """A script, and what has to be told of it."""

    source: str
    here: tuple[int, ...]
    """The numbers of the lines of which one has to be named; none: any."""
    parts: tuple[str, ...]
    case: Case

    def at(self, folder: Path) -> Case:
        """The case, with its script in this folder."""
        (folder / "train.py").write_text(self.source)
        return Case(**{**vars(self.case), "script": str(folder / "train")})


def draw(seed: int, number: int, *, live: bool = False) -> Patient:
    """The same patient for the same seed and number; live: one whose fault a look can see."""
    drawn = random.Random(f"{seed} {number}")
    sick = drawn.random() >= SOUND_SHARE
    fault = drawn.choice([one for one in FAULTS if one.live or not live]) if sick else None
    model = drawn.choice(MODELS)
    loop = drawn.choice(
        [one for one in LOOPS if not (fault and fault.loops) or one.name in fault.loops]
    )
    loader = drawn.choice([one for one in LOADERS if fault is None or _fits(fault, one, loop)])
    added = fault or drawn.choice(TRAITS)
    values = {
        name: drawn.choice(some)
        for name, some in {**NAMES, "workers": (1,), **loader.values, **added.values}.items()
    }
    values |= {"kind": model.name, "seed": drawn.randrange(1000)}
    if fault is not None and fault.rank is not None:
        values["rank"] = fault.rank
    parts: list[Part] = [model, loader, loop, added]
    # What the fault says of these, it says instead.
    parts += [one for one in (PERSISTENT, SAMPLER) if not added.slots.keys() & one.slots.keys()]
    source, here = compose(parts, values)
    dose = drawn.choice(DOSES) if fault is not None and fault.per != "never" else None
    case = Case(
        name=f"{number} {added.name}",
        script="train",
        roots=fault.roots if fault else (),
        rank=int(str(values["rank"])) if fault and fault.ranked else None,
        dose=dose,
        graded=None if dose is None else _graded(fault, loader, loop, values),
    )
    return Patient(
        source=source,
        here=here,
        parts=(model.name, loader.name, loop.name, added.name),
        case=case,
    )


def _fits(fault: Fault, loader: Loader, loop: Part) -> bool:
    return fault.slots.keys() <= slots([loader, loop, *MODELS]) and (
        not fault.loaders or loader.name in fault.loaders
    )


def _graded(
    fault: Fault | None, loader: Loader, loop: Part, values: dict[str, object]
) -> Graded | None:
    """How the dose is paid: what a worker or a thread does counts once it outlasts the step."""
    if fault is None:
        return None
    beside = loader.hidden and not fault.slots.keys().isdisjoint({"item", "shard"})
    batch, micros, every, workers = (
        int(str(values[name])) for name in ("batch", "micros", "every", "workers")
    )
    times = batch // workers if fault.per == "item" and beside else 1
    if fault.per == "item" and not beside:
        times = batch
    inner = fault.slots.keys() & {"item", "shard", "collate", "forward", "begin"}
    if loop.name == "accumulation" and inner:
        times *= micros
    per_step = 1 / every if fault.per == "every" else times
    return Graded(option="--cost-ms", per_step=per_step, hidden=beside)
