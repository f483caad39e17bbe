"""What the source of a script says of its training: for where neither files nor arguments do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress

from ddoctor.analysis.script_source import LOADER, STRATEGIES, evaluates, is_trained_on
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall

AUTOCAST = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")
OF_LIGHTNING = (
    *("lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer"),
    *("lightning.Fabric", "lightning.fabric.Fabric", "lightning_fabric.Fabric"),
)
"""They train on the loaders of a module or of a call, without a loop in the script."""
LOCAL = re.compile(r"os\.environ\[\w*LOCAL\w*\]|local_process_index|LOCAL_RANK|LOCALID")
OPTIMIZER = re.compile(r"torch\.optim\.[A-Z]\w*")
NUMBER = re.compile(r"[\d.]+(?:e-?\d+)?")
HALVES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.half": "fp16"}


def strategy(script: Script) -> str:
    """How it wraps its model; empty: not at all, or in several ways."""
    found = {STRATEGIES[one.name] for one in script.of(*STRATEGIES)}
    return found.pop() if len(found) == 1 else ""


def autocast(script: Script) -> str:
    """The precision of the autocast of its training steps; empty: none, or a variable decides."""
    kinds = set()
    for one in script.of(*AUTOCAST):
        if "training" in one.within:
            given = one.keywords.get("dtype") or next(iter(one.arguments[1:2]), "")
            kinds.add(HALVES.get(given, ""))
    return f"{kinds.pop()} by autocast" if len(kinds) == 1 and "" not in kinds else ""


def backend(script: Script) -> tuple[str, str]:
    """The backend of its process group, and the place that says it; empty: nothing says it."""
    for one in script.of("torch.distributed.init_process_group"):
        name = _literal(one.argument("backend", 0) or "")
        if name:
            return name, one.at.place
    return "", ""


def devices(script: Script) -> str:
    """The place where each rank chooses its GPU by its local rank; empty: none does."""
    for one in script.of("torch.cuda.set_device", "torch.accelerator.set_device_index"):
        if LOCAL.search(" ".join((*one.arguments, *one.origin("device", 0)))):
            return one.at.place
    return ""


def micro_batch(script: Script) -> tuple[int, str] | None:
    """Samples of the batches that it trains on, and the place; None: a variable decides."""
    found = {(_batch(one), one.at.place) for one in _trained_on(script)}
    number, place = found.pop() if len(found) == 1 else (0, "")
    return (number, place) if number else None


def own_rate(script: Script) -> Setting | None:
    """The learning rate of its optimizers; None: a variable decides, or they have several."""
    made = [one for one in script.calls if OPTIMIZER.fullmatch(one.name)]
    found = {one.origin("lr", 1) for one in made}
    values = found.pop() if len(found) == 1 else ()
    if len(values) != 1 or not NUMBER.fullmatch(values[0]):
        return None
    at = made[0].at
    return Setting(name="optimizer.lr", value=values[0], file=at.file, line=at.line)


def _trained_on(script: Script) -> Iterator[SourceCall]:
    by_lightning = bool(script.of(*OF_LIGHTNING))
    for one in script.of(LOADER):
        given = by_lightning and "predict" not in one.at.function
        trains = (given or is_trained_on(one, script)) and not evaluates(one)
        if trains and "**" not in one.keywords:
            yield one


def _batch(loader: SourceCall) -> int:
    made = loader.origin("batch_size", 1)
    return int(made[0]) if len(made) == 1 and made[0].isdigit() else 0


def _literal(source: str) -> str:
    with suppress(ValueError, SyntaxError):
        found = ast.literal_eval(source)
        return found if isinstance(found, str) else ""
    return ""
