"""The CPUs that a job or a container grants, and the loader workers of a launch that share them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddoctor.analysis.launch_plan import WORKERS, LaunchPlan
from ddoctor.analysis.script_source import LOADER, evaluates, worker_count
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall

# torch warns from one worker per CPU on. A worker that mostly reads waits, so twice as many may be
# right; with four times as many, even such workers wait for each other.
MANY, TOO_MANY = 2, 4
NAMED = re.compile(r"[\w.]+(?:\[['\"]\w+['\"]\])*")
"""A variable, an attribute or a key, such as ``cfg["data"]["workers"]``."""
WHOLE = re.compile(r"(?P<number>\d{1,6}(?:\.\d{1,6})?)(?P<thousandths>m?)")


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The loader workers of each rank."""

    number: int
    at: str
    """Where the number is written."""


def cpus(granted: Setting) -> float | None:
    """The number of CPUs, which Kubernetes also writes as ``7500m``; None: it is none."""
    match = WHOLE.fullmatch(granted.value.strip("\"'"))
    if match is None:
        return None
    return float(match["number"]) / (1000 if match["thousandths"] else 1)


def loader_workers(plan: LaunchPlan, script: Script | None) -> Workers | None:
    """The most workers that a loader for the training has; None: unknown, or none."""
    loaders = script.of(LOADER) if script is not None else ()
    found = [_of_loader(one, plan) for one in loaders if not evaluates(one)]
    if not loaders:
        found = [_of_setting(plan.get(*WORKERS))]
    known = [one for one in found if one is not None and one.number]
    return max(known, key=lambda one: one.number, default=None)


def _of_loader(loader: SourceCall, plan: LaunchPlan) -> Workers | None:
    given = loader.argument("num_workers", 5) or "0"
    # Of a variable, what it is assigned from, such as `workers = args.workers`.
    last = loader.values.get("num_workers", loader.values.get("5", "")).rpartition("= ")[2]
    for text in (given, last):
        deep = "." in text or "[" in text
        name = re.findall(r"\w+", text)[-1:] if deep and NAMED.fullmatch(text) else []
        setting = plan.get(*(f"arg.{one}" for one in name))
        if setting is not None:
            return _of_setting(setting)
    count = worker_count(loader)
    return Workers(number=count, at=loader.at.place) if count is not None else None


def _of_setting(setting: Setting | None) -> Workers | None:
    if setting is None or setting.number is None:
        return None
    return Workers(number=setting.number, at=setting.at)
