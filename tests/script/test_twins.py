"""Mistakes in a source, each with sound twins that differ in a line or two."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ddoctor import engine
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Severity
from tests.launched import launch
from tests.script.conftest import Read
from tests.script.sources import ACCELERATE, LOADER, SET_UP, ddp, in_functions
from tests.script.twins import (
    behind,
    checkpoints,
    data,
    evaluations,
    files,
    flattened,
    forks,
    frameworks,
    loaders,
    metrics,
    models,
    objects,
    of_one_rank,
    optimizers,
    options,
    ranks,
    shares,
    training,
    weights,
    wrappers,
)
from tests.script.twins.parts import ON_ONE
from tests.script.twins.second import SECOND

MODULES = (
    behind,
    checkpoints,
    data,
    flattened,
    evaluations,
    files,
    forks,
    frameworks,
    loaders,
    metrics,
    models,
    objects,
    of_one_rank,
    optimizers,
    options,
    ranks,
    shares,
    training,
    weights,
    wrappers,
)
TWINS = {name: one for module in MODULES for name, one in module.TWINS.items()}


def test_each_name_is_given_once() -> None:
    assert len(TWINS) == sum(len(module.TWINS) for module in MODULES)


def told(source: str, script: Read, *settings: Setting) -> Mapping[str, Finding]:
    starts = launch("torchrun", "train.py", {"ranks-per-host": "8", "hosts": "1"})
    whole = Launch(
        command=starts.command,
        launcher="torchrun",
        script="train.py",
        settings=(*starts.settings, *settings),
    )
    report = engine.examine(Evidence([whole, script(source)]), "doctor")
    assert report.crashed == ()
    return {one.cause: one for one in report.findings}


@pytest.mark.parametrize("name", TWINS)
def test_the_mistake_and_its_twin(script: Read, name: str) -> None:
    cause, sick, *twins = TWINS[name]
    assert cause in told(sick, script)
    for sound in twins:
        quiet(sound, script, cause)


def quiet(source: str, script: Read, cause: str) -> None:
    found = told(source, script)
    assert cause not in found
    assert all(one.severity is Severity.NOTE for one in found.values())


IN_FUNCTIONS = [
    name for name, (_, *scripts) in TWINS.items() if all("local_rank =" in one for one in scripts)
]
"""Those whose scripts are parts around the same lines."""


@pytest.mark.parametrize("name", IN_FUNCTIONS)
def test_the_sound_twins_in_a_function(script: Read, name: str) -> None:
    cause, _, *twins = TWINS[name]
    for sound in twins:
        quiet(in_functions(sound), script, cause)


@pytest.mark.parametrize("name", SECOND)
def test_a_second_twin(script: Read, name: str) -> None:
    cause, sick, *_ = TWINS[name]
    says, instead = SECOND[name]
    assert says in sick
    quiet(sick.replace(says, instead), script, cause)


def test_each_mistake_has_two_sound_twins() -> None:
    alone = {name for name, (_, _, *twins) in TWINS.items() if len(twins) < 2}
    assert alone <= {*IN_FUNCTIONS, *SECOND}


def test_a_gpu_that_the_launch_chooses_for_each_rank(script: Read) -> None:
    by_rank = Setting(name="env.CUDA_VISIBLE_DEVICES", value="$SLURM_LOCALID", file="one.sh")
    assert "wrong-device-binding" not in told(ddp(set_up=ON_ONE), script, by_rank)


@pytest.mark.parametrize(("given", "missing"), [("0", True), ("8", False)])
def test_the_workers_that_the_launch_gives(script: Read, given: str, missing: bool) -> None:
    source = ddp(loader=LOADER.replace("num_workers=4", "num_workers=args.workers"))
    workers = Setting(name="arg.workers", value=given, file="train.py", line=3)
    assert ("dataloader-bottleneck" in told(source, script, workers)) is missing


@pytest.mark.parametrize(("line", "idle"), [("0,1,2,3", True), ("0", False), ("$GPU", False)])
def test_gpus_that_one_process_gets(script: Read, line: str, idle: bool) -> None:
    settings = {"ranks": "1", "hosts": "1", "env.CUDA_VISIBLE_DEVICES": line}
    # The process group may be made by hand.
    source = ddp(set_up=SET_UP.replace('"nccl"', '"nccl", rank=0, world_size=1'))
    report = engine.examine(
        Evidence([launch("python", "train.py", settings), script(source)]), "doctor"
    )
    causes = {one.cause for one in report.findings}
    assert ("not-launched-distributed" in causes) is idle


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("'no'", True),
        ("'fp16'", True),
        ("args.precision", True),
        ("'fp16' if args.fp16 else 'no'", True),
        ("'bf16'", False),
        ("None", False),
        ("choose()", False),
    ],
)
def test_a_precision_that_the_script_decides(script: Read, given: str, wrong: bool) -> None:
    settings = {"ranks": "2", "hosts": "1", "precision": "bf16", "arg.precision": "no"}
    source = ACCELERATE.replace("steps=4", f"steps=4, mixed_precision={given}")
    evidence = Evidence([launch("accelerate", "train.py", settings), script(source)])
    causes = {one.cause for one in engine.examine(evidence, "doctor").findings}
    assert ("mixed-precision-overridden" in causes) is wrong
