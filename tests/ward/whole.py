"""`python -m tests.ward.whole SEED [--count N]`: runs that are followed to their end, drawn.

Every second run is sound, and does what long trainings do. In the others, steps become slower at a
drawn step, by a drawn factor, at a drawn place; or they hang. Half of those have a habit of the
sound ones, too. How long steps are, how much they vary, how many there are, and the size of the
model and its loader are drawn for each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

BASES = (0.012, 0.025, 0.05, 0.1)
"""Seconds of a step without what ranks wait for each other."""
RUN_SECONDS, FEWEST_STEPS = 25, 500
EXCHANGE_SECONDS = 0.003
LIMIT_SECONDS = 300
FACTORS = (1.15, 1.3, 1.5, 2.0)
SCRIPT = """
import os, random, subprocess, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
rank, begun = dist.get_rank(), 0
at, extra, who, habit, then = {at}, {extra}, {who}, {habit!r}, {then}
chance = random.Random(rank)


def now(kind):
    return kind == {kind!r} and begun >= at and (who < 0 or rank == who)


class Samples(Dataset):
    def __len__(self):
        return 10**9

    def __getitem__(self, number):
        if now("loader"):
            time.sleep(extra / 4)
        return torch.randn({width})


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear({width}, {width})

    def forward(self, batch):
        if now("forward"):
            time.sleep(extra)
        return self.layer(batch).square().mean()


model = torch.nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for batch in DataLoader(Samples(), batch_size=4, num_workers={workers}):
    longer = 4 / (1 + begun) if habit == "warm-up" else 0
    time.sleep({base} * max(0.5, chance.gauss(1 + longer, {noise})))
    if begun == at and rank == 0:
        open("onset", "w").write(str(time.time()))
    if now("loop"):
        time.sleep(extra)
    if habit == "recompiles" and then <= begun < then + 4:
        time.sleep(0.3)
    if habit == "evaluates" and begun % 150 == 149:
        model.eval()
        with torch.no_grad():
            for _ in range(20):
                model(batch)
                time.sleep(0.05)
        model.train()
    if habit == "saves" and begun % 200 == 199 and rank == 0:
        time.sleep(0.3)
        torch.save(model.state_dict(), "checkpoint.pt")
    if habit == "neighbour" and begun == then and rank == 0:
        busy = "import time; end = time.time() + 2\\nwhile time.time() < end: pass"
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", busy])
    if {kind!r} == "hangs" and begun == at and rank == 1:
        time.sleep(10_000)
    loss = model(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    begun += 1
    if begun == {steps}:
        break
print("trained", rank, flush=True)
dist.barrier()
os._exit(0)
"""
HANGS = "hangs"
SOUND = ("plain", "evaluates", "saves", "warm-up", "recompiles", "neighbour")
PHASES = {"loader": "loader", "forward": "forward", "loop": "rest"}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One run."""

    kind: str
    base: float
    steps: int
    at: int
    factor: float
    who: int
    habit: str
    then: int
    noise: float
    width: int
    workers: int

    @property
    def source(self) -> str:
        """The script."""
        extra = (self.base + EXCHANGE_SECONDS) * (self.factor - 1)
        return SCRIPT.format(extra=extra, **vars(self))

    def fault(self, events: Sequence[Mapping[str, Any]]) -> str:
        """What is wrong with these events; empty: nothing."""
        told = [one for one in events if one["event"] in ("slower", "hung")]
        if self.kind == HANGS:
            right = [one for one in told if one["event"] == "hung" and one["ranks"] == [1]]
            return "" if right and len(told) == 1 else f"hang not reported: {_brief(told)}"
        if self.factor == 1.0:
            return f"false alarm: {_brief(told)}" if told else ""
        if not told:
            return "not reported"
        first = told[0]
        if abs(first["step"] - self.at) > 5:
            return f"wrong step: {_brief(told)} instead of {self.at}"
        ranks = [] if self.who < 0 else [self.who]
        if first["ranks"] != ranks or first["phase"] != PHASES[self.kind]:
            return f"wrong place: {_brief(told)}"
        return "" if len(told) == 1 else f"more than one event: {_brief(told)}"


def _brief(events: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(
        f"{one['event']} {one['step']} {one['phase']} {one['ranks']}" for one in events
    )


def draw(seed: int, number: int) -> Drawn:
    """The run of this number."""
    chance = random.Random(f"{seed} {number}")
    base = chance.choice(BASES)
    steps = max(FEWEST_STEPS, int(RUN_SECONDS / base))
    kind = "" if number % 2 else chance.choice((*PHASES, *PHASES, HANGS))
    slower = kind in PHASES
    return Drawn(
        kind=kind,
        base=base,
        steps=steps,
        at=chance.randrange(int(0.3 * steps), int(0.75 * steps)),
        factor=chance.choice(FACTORS) if slower else 1.0,
        who=chance.choice((-1, 0, 1)) if slower else -1,
        habit=chance.choice(SOUND if not kind or chance.random() < 0.5 else SOUND[:1]),
        then=chance.randrange(int(0.3 * steps), int(0.9 * steps)),
        noise=chance.choice((0.0, 0.02, 0.04)),
        width=chance.choice((64, 256, 1024)),
        # Workers hide what an item takes longer.
        workers=0 if kind == "loader" else chance.choice((0, 2)),
    )


def latency(one: Drawn, events: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """How long after its begin a slowdown was told; empty: none was."""
    told = next((event["time"] for event in events if event["event"] == "slower"), "")
    if one.kind not in PHASES or not told:
        return ""
    seconds = datetime.fromisoformat(told).timestamp() - float((folder / "onset").read_text())
    steps = seconds / ((one.base + EXCHANGE_SECONDS) * one.factor)
    return f", told after {steps:.0f} steps, {seconds:.1f} s"


def followed(one: Drawn, folder: Path) -> list[dict[str, Any]]:
    """Run it; its events."""
    script, events = folder / "train.py", folder / "events.jsonl"
    script.write_text(one.source)
    command = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *("-m", "ddoctor.probe", "run", "--steps=all", f"--events={events}", "--end-hung"),
        str(script),
    )
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert (done.returncode == 0) == (one.kind != HANGS), done.stderr
    return [json.loads(line) for line in events.read_text().splitlines()]


def main(arguments: list[str]) -> int:
    """Follow the runs of a seed; the exit code says whether all was reported rightly."""
    options = argparse.ArgumentParser(prog="python -m tests.ward.whole")
    options.add_argument("seed", type=int)
    options.add_argument("--count", type=int, default=40)
    chosen = options.parse_args(arguments)
    outcomes: Counter[str] = Counter()
    for number in range(chosen.count):
        one = draw(chosen.seed, number)
        with TemporaryDirectory() as folder:
            events = followed(one, Path(folder))
            fault, late = one.fault(events), latency(one, events, Path(folder))
        group = f"×{one.factor}" if one.kind in PHASES else one.kind or "sound"
        outcomes[f"{group}: {'wrong' if fault else 'right'}"] += 1
        print(f"{number} {one}: {fault or 'ok'}{late}", flush=True)
    print(*(f"{what} {count}" for what, count in sorted(outcomes.items())), sep="\n")
    return int(any(what.endswith("wrong") for what in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
