"""Each kind of input, and what must hold for whatever is made of it."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
from rich.console import Console

from ddoctor import engine
from ddoctor.__main__ import line
from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle, limits
from ddoctor.evidence.flight_records import FlightRecords, RankRecords
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.plan import Plan
from ddoctor.evidence.section import Evidence, Section
from ddoctor.forecast import launch_files, request
from ddoctor.forecast.options import PlanRequest
from ddoctor.launch.review import review
from ddoctor.live import logs
from ddoctor.models import JUDGING, Command, Report
from ddoctor.reading import reader
from ddoctor.reading.flight_recorder import Trace
from ddoctor.report import (
    charts,
    difference,
    html,
    markdown,
    schema,
    terminal,
    training_charts,
)
from tests import traced as traces
from tests.fuzz import mutation, seeds, texts

OF_OTHERS = ("collect ", "probe ")
"""What the evidence itself says to have crashed; everything else in the list is a check."""


MEASURED = (
    *("run", "run, filled", "probe", "probe, filled", "late-rank", "slow-loader"),
    *("recorded images", "recorded sharded", "recorded by-hand"),
)
"""Bundles from which a plan takes a step, a model or a GPU."""
NUMBERS = (0, 1, 3, 64, 10**6, 10**18)
MOST_LAYERS = 2
"""Of a model that is measured to the end."""
OPTIONS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("params", ("1", "4.4B", "1e300", "9" * 400, "1e-9", "x")),
    ("trainable", ("1", "82M", "1e9", "")),
    ("activations", NUMBERS),
    ("layers", NUMBERS[1:]),
    ("sequence", NUMBERS[1:]),
    ("precision", ("fp32", "bf16")),
    ("optimizer", ("sgd", "adamw-8bit")),
    ("gpu", ("h100-80", "rtx-4090", "nothing", None)),
    ("device_memory", ("24GiB", "1KB", "9e300TiB", "-1", "")),
    ("host_memory", NUMBERS[1:]),
    ("gpus", ("1", "1,2,4,8", "64x64", "0", "1,,2", "9" * 30, "x", "1,1")),
    ("micro_batch", NUMBERS[1:]),
    ("global_batch", NUMBERS[1:]),
    ("samples", NUMBERS[1:]),
    ("epochs", (0.0, 1.0, 1e-300, 1e300, -1.0)),
    ("step", (0.0, 0.4, 1e-300, 1e300)),
    ("loading", (0.0, 0.1, 1e300)),
)
"""What a user may write behind each option, sense and nonsense."""


class Broken(Exception):
    """A failure that ddoctor survives: a check that crashed, a part of a report that is missing."""


Kind = Callable[[Random, Path], None]
"""Makes an input in the folder and has ddoctor read it; `DoctorError`: refused in one line."""


def diagnosed(random: Random, folder: Path) -> None:
    """``ddoctor diagnose`` in all its forms; of the page the text, as charts take a second."""
    evidence, report = _judged(random, folder)
    _shown(report, evidence, random.choice((100, 100, 40, 1)))
    schema.render(report)
    markdown.render(report, evidence)
    with patch.object(charts, "drawn", _blank), patch.object(training_charts, "drawn", _blank):
        html.render(report, evidence)


def _shown(report: Report, evidence: Evidence, width: int = 100) -> None:
    # With all that rich asks a terminal for each line.
    console = Console(file=io.StringIO(), width=width, height=25, force_terminal=False)
    terminal.render(report, evidence, console)


def _blank(*_: object) -> str:
    return ""


def charted(random: Random, folder: Path) -> None:
    """``ddoctor report --html``, with its charts."""
    evidence, report = _judged(random, folder)
    html.render(report, evidence)


def compared(random: Random, folder: Path) -> None:
    """``ddoctor diff``: a bundle with itself, changed twice."""
    name = _name(random)
    pair = [_read(_changed(name, random, random.randint(0, 3)), folder) for _ in "ab"]
    found = difference.compare(*pair)
    found.json()
    "\n".join(found.lines())


def planned(random: Random, folder: Path) -> None:
    """``ddoctor plan``: its options, at times with the bundle of a run or a sweep."""
    options: dict[str, Any] = {"gpu": "a100-40", "params": "4.4B", "activations": 10**10}
    options |= {name: random.choice(values) for name, values in OPTIONS if random.random() < 0.12}
    if random.random() < 0.7:
        path = _written(_changed(random.choice(MEASURED), random, random.randint(0, 3)), folder)
        options["measured"] = [path]
        if random.random() < 0.7:
            del options["params"], options["activations"]
    options = {name: value for name, value in options.items() if value is not None}
    evidence = Evidence([request.plan(PlanRequest(**options))])
    report = engine.examine(evidence, "plan")
    _shown(report, evidence)
    launch_files.texts(evidence.all(Plan)[0])


def configured(random: Random, folder: Path) -> None:
    """``ddoctor plan --model``: a config of a small model, which is read."""
    # Importing it imports torch.
    from ddoctor.forecast.model.blueprint import from_config

    from_config(str(_config(random, folder)))


def modelled(random: Random, folder: Path) -> None:
    """``ddoctor plan --model`` to its end, which takes a second for each layer."""
    from ddoctor.forecast.model.blueprint import from_config

    path = _config(random, folder)
    if from_config(str(path)).read("bf16-mixed", "adamw").layers > MOST_LAYERS:
        raise DoctorError("too long for a try")
    evidence = Evidence([request.plan(PlanRequest(model=str(path), gpu="a100-40", gpus="1"))])
    _shown(engine.examine(evidence, "plan"), evidence)


def _config(random: Random, folder: Path) -> Path:
    config = json.loads(json.dumps(random.choice(seeds.CONFIGS)))
    mutation.changed(config, random, random.randint(1, 3))
    raw = _json(config)
    path = folder / f"config-{os.getpid()}.json"
    path.write_bytes(mutation.damaged(raw, random) if random.random() < 0.1 else raw)
    return path


def dumped(random: Random, folder: Path) -> None:
    """A dump of torch's flight recorder, as JSON or as a pickle."""
    document = seeds.dump()
    mutation.changed(document, random, random.randint(0, 4))
    raw = _json(document) if random.random() < 0.5 else pickle.dumps(document, protocol=2)
    try:
        trace = Trace(mutation.damaged(raw, random) if random.random() < 0.7 else raw)
    except ValueError as error:
        raise DoctorError(str(error)) from error
    told = RankRecords(
        rank=0,
        pid=1,
        told_by="dump file",
        idle_seconds=trace.newest,
        groups=tuple(trace.groups(_frame)),
    )
    _kept(FlightRecords(ranks=(told,)))


def snapshotted(random: Random, folder: Path) -> None:
    """A memory snapshot of torch's allocator, and all forms of its report."""
    document = seeds.snapshot()
    mutation.changed(document, random, random.randint(0, 4))
    raw = pickle.dumps(document, protocol=random.choice((2, 4)))
    path = folder / f"snapshot-{os.getpid()}_rank0.pickle"
    path.write_bytes(mutation.damaged(raw, random) if random.random() < 0.5 else raw)
    evidence, _ = reader.read([path])
    _reported(evidence)


def traced(random: Random, folder: Path) -> None:
    """``ddoctor diagnose`` of traces of torch's profiler, of two ranks."""
    paths = []
    for rank in range(2):
        one = traces.made(rank, 2, 3, traces.Dose(stacks=True, pageable=True, small=2))
        path = one.write(folder / f"trace-{os.getpid()}-{rank}.json")
        document = json.loads(path.read_text())
        mutation.changed(document, random, random.randint(0, 6))
        raw = _json(document)
        path.write_bytes(mutation.damaged(raw, random) if random.random() < 0.2 else raw)
        paths.append(path)
    evidence, _ = reader.read(paths)
    _reported(evidence)


def _frame(file: str, line: int, function: str) -> Frame:
    return Frame(file=file, line=line, function=function, of_user=True)


def logged(random: Random, folder: Path) -> None:
    """A log of ``attach --log``."""
    raw = seeds.LOG
    for _ in range(random.randint(1, 4)):
        raw = mutation.damaged(raw, random)
    path = folder / f"log-{os.getpid()}"
    path.write_bytes(raw)
    for one in logs.sections([path], [0, 1, 3], first=0, host="node-1", command=("train.py",)):
        _kept(one)


def pasted(random: Random, folder: Path) -> None:
    """``ddoctor diagnose`` of one or two texts: logs, stacks, outputs of commands."""
    paths = []
    for number in range(random.choice((1, 1, 2))):
        path = folder / f"text-{os.getpid()}-{number}"
        path.write_bytes(texts.text(random))
        paths.append(path)
    evidence, refused = reader.read(paths)
    _reported(evidence)
    [line(f"{one.name} {one.why}") for one in refused]


def launched(random: Random, folder: Path) -> None:
    """``ddoctor doctor -- COMMAND``, of which nothing is started."""
    place = folder / f"launch-{os.getpid()}"
    place.mkdir(exist_ok=True)
    evidence = Evidence(review(texts.launch(random, place), place))
    _reported(evidence, "doctor")


def _reported(evidence: Evidence, command: Command = "diagnose") -> None:
    for section in evidence:
        _kept(section)
    report = _report(evidence, command)
    _shown(report, evidence)
    schema.render(report)
    markdown.render(report, evidence)


def _kept(section: Section) -> None:
    """What ddoctor makes of an input, it must be able to read again."""
    (told,) = Evidence([section])
    if wrong := limits.impossible(told):
        raise Broken(wrong)
    msgspec.json.decode(msgspec.json.encode(told), type=type(told))


def _name(random: Random) -> str:
    return random.choice(list(seeds.bundles()))


def _judged(random: Random, folder: Path) -> tuple[Evidence, Report]:
    evidence = _read(_bundle(random), folder)
    return evidence, _report(evidence)


def _report(evidence: Evidence, command: Command = "diagnose") -> Report:
    report = engine.examine(evidence, command)
    for row in report.crashed:
        if row.check != JUDGING and not row.check.startswith(OF_OTHERS):
            raise Broken(f"{row.check}: {row.error}")
    return report


def _bundle(random: Random) -> bytes:
    """A bundle with one to four values changed, at times with few of its sections or cut bytes."""
    raw = _changed(_name(random), random, random.randint(1, 4))
    return mutation.damaged(raw, random) if random.random() < 0.05 else raw


def _changed(name: str, random: Random, changes: int) -> bytes:
    document: Any = msgspec.json.decode(seeds.bundles()[name])
    if random.random() < 0.3:
        kept = random.random()
        document["sections"] = [one for one in document["sections"] if random.random() < kept]
    # Of the header there is little to change.
    mutation.changed(document if random.random() < 0.02 else document["sections"], random, changes)
    return _json(document)


def _json(document: Any) -> bytes:
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        # msgspec writes no lone surrogates.
        return json.dumps(document).encode()


def _read(raw: bytes, folder: Path) -> Evidence:
    return bundle.read(_written(raw, folder))


def _written(raw: bytes, folder: Path) -> Path:
    path = folder / f"bundle-{os.getpid()}.json"
    path.write_bytes(raw)
    return path


KINDS: dict[str, Kind] = {
    "diagnose": diagnosed,
    "charts": charted,
    "diff": compared,
    "plan": planned,
    "config": configured,
    "model": modelled,
    "dump": dumped,
    "snapshot": snapshotted,
    "log": logged,
    "trace": traced,
    "text": pasted,
    "launch": launched,
}


def outcome(kind: str, number: int, folder: Path) -> str:
    """``judged``, or why it was refused; what else is raised is a fault of ddoctor."""
    try:
        KINDS[kind](Random(f"{kind} {number}"), folder)
    except DoctorError as error:
        if not line(str(error)).isprintable():
            raise Broken(f"no single line: {error}") from error
        return "refused"
    return "judged"
