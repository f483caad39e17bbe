"""Evidence that no command makes is never judged: each field has a writer, each way a command."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import tomllib

from ddoctor import check_catalog, knowledge
from ddoctor.collect import collectors
from ddoctor.evidence.bundle import section_types
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.run_history import RunHistory
from ddoctor.evidence.section import Absent, Known, Part, Section
from ddoctor.models import Command
from ddoctor.probing import catalog

ROOT = Path(__file__).parent.parent
FILLED_FOR_ALL = {"host", "unseen", "printed"}
"""Whatever collects or merges fills these of every section."""
MAKERS: tuple[tuple[str, Command], ...] = (
    ("ddoctor/training", "run"),
    ("ddoctor/live", "attach"),
    ("ddoctor/forecast", "plan"),
    ("ddoctor/cluster", "probe"),
    ("ddoctor/reading", "diagnose"),
    ("ddoctor/launch", "doctor"),
    ("ddoctor/script", "doctor"),
)
"""The rooms that serve one command."""
WAYS = [way for check in check_catalog.discover() for way in check.ways]


def described(kind: type[Part] | type[Section]) -> Iterator[type[Part] | type[Section]]:
    for one in kind.__subclasses__():
        yield one
        yield from described(one)


section_types()
KINDS = [kind for base in (Part, Section) for kind in described(base) if kind is not Known]
NAMES = {kind.__name__ for kind in KINDS}
MAKES = {"convert", "replace"}
"""The functions that make a part or a section of what they are given."""


@cache
def calls(folder: str) -> tuple[tuple[Path, str, frozenset[str]], ...]:
    """File, name and keywords of each call in the code that ships that makes one of these."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else ""
                name = called.id if isinstance(called, ast.Name) else name
                keywords = frozenset(one.arg for one in node.keywords if one.arg)
                # convert(rows, Kind) makes one of what another process has written as JSON.
                made = [one.id for one in node.args if isinstance(one, ast.Name)]
                named = [one for one in (name, *made) if one in NAMES]
                if name in MAKES or name in NAMES:
                    parts_of = named if name == "convert" else [name]
                    found += [(path, one, keywords) for one in parts_of]
                if any(one.arg is None for one in node.keywords) or name == "convert":
                    found += [(path, one, texts(path.parent)) for one in named]
    return tuple(found)


@cache
def texts(folder: Path) -> frozenset[str]:
    """All strings of a folder's code: keys of what is made by ``Kind(**fields)`` or ``convert``."""
    return frozenset(
        node.value
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def shipped() -> Iterator[tuple[Path, str, frozenset[str]]]:
    for folder in ("ddoctor", "probes"):
        yield from calls(folder)


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value:  # type: ignore[attr-defined]
        if isinstance(inner, dict | list):
            yield from keys(inner)


def parts(kind: object) -> Iterator[type[Part] | type[Known]]:
    """A table's type and those of its rows, however deep."""
    if isinstance(kind, type) and issubclass(kind, Part | Known):
        yield from (base for base in kind.__mro__ if issubclass(base, Part | Known))
        for field, hint in get_type_hints(kind).items():
            if field in kind.__struct_fields__ and field not in FILLED_FOR_ALL:
                yield from parts(hint)
    for argument in get_args(kind):
        yield from parts(argument)


@pytest.mark.parametrize("table", Known.__subclasses__(), ids=lambda table: table.__name__)
def test_every_field_of_a_table_is_in_its_file(table: type[Known]) -> None:
    written = set(keys(tomllib.loads(knowledge.written(table))))
    fields = {field for kind in parts(table) for field in kind.__struct_fields__}
    assert fields - FILLED_FOR_ALL <= written


OF_TABLES = {kind for table in Known.__subclasses__() for kind in parts(table)}


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in OF_TABLES], ids=lambda k: k.__name__)
def test_every_field_has_a_producer(kind: type[Part] | type[Section]) -> None:
    written = {
        field
        for _, name, keywords in shipped()
        if name in (kind.__name__, "replace")
        for field in keywords
    }
    assert set(kind.__struct_fields__) - FILLED_FOR_ALL <= written


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.check)
def test_one_command_makes_all_that_a_way_needs(way: check_catalog.Way) -> None:
    together: set[Command] = set(get_args(Command))
    for need in way.needs.values():
        # What a way can do without may come with the bundle of another command.
        if not need.optional and not issubclass(need.section, Known):
            together &= set(need.section.commands)
    needed = [need.section.__name__ for need in way.needs.values() if not need.optional]
    assert together, f"{way.check}: no command makes {', '.join(needed)} together"


def test_every_collector_and_probe_serves_the_commands_that_its_section_names() -> None:
    collected = {get_type_hints(collector)["return"] for collector in collectors()}
    assert all({"doctor", "probe"} <= set(section.commands) for section in collected)
    for name in catalog.names():
        hint = get_type_hints(import_module(f"{catalog.PACKAGE}.{name}").measure)["return"]
        (section,) = {*get_args(hint), hint} & set(section_types())
        assert "probe" in section.commands


def test_the_rooms_of_one_command_make_what_is_said_to_be_made_by_it() -> None:
    sections = {section.__name__: section for section in section_types()}
    makers: dict[Command, set[str]] = defaultdict(set)
    for path, name, _ in shipped():
        for room, command in MAKERS:
            if path.is_relative_to(ROOT / room) and name in sections:
                makers[command].add(name)
    for command, made in makers.items():
        assert [one for one in sorted(made) if command not in sections[one].commands] == []
    for section in sections.values():
        for command in section.commands:
            if len(section.commands) == 1 and not section.probe:
                assert section.__name__ in makers[command]


def sections_of(command: Command) -> set[str]:
    return {section.label() for section in section_types() if command in section.commands}


def bundle(path: Path) -> tuple[set[str], set[str]]:
    """The sections of a bundle, and those of which it says why they are absent."""
    sections = json.loads(path.read_text())["sections"]
    absent = {row["section"] for one in sections for row in one.get("sections", ())}
    return {one["type"] for one in sections}, absent


def made_by(folder: Path, *arguments: str) -> tuple[set[str], set[str]]:
    path = folder / "bundle.json"
    command = [sys.executable, "-m", "ddoctor", *arguments]
    at = command.index("--") if "--" in command else len(command)
    command[at:at] = ["--bundle", str(path)]
    # torchrun is next to the interpreter that runs the tests.
    path_of_programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PATH": path_of_programs},
        check=False,
    )
    assert path.exists(), done.stdout + done.stderr
    return bundle(path)


def test_doctor_makes_every_section_of_its_own_or_says_why_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    found, absent = made_by(tmp_path, "doctor", "--no-probes", "--", "python", "train.py")
    probed = {one.label() for one in section_types() if one.probe} | {ProbeRuns.label()}
    # A script is read where the command that starts it is given.
    assert found | absent == sections_of("doctor") - probed


def test_plan_makes_its_section(tmp_path: Path) -> None:
    options = ("--params", "100M", "--activations", "1GB", "--gpu", "h100-80")
    assert made_by(tmp_path, "plan", *options) == (sections_of("plan"), set())


SCRIPT = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters())
data = torch.utils.data.TensorDataset(torch.rand(200, 8))
for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""
NOT_ALWAYS = {"loader-curve", "trials", "memory-headroom", Absent.label()}
"""What only an option, or a slow loader, leads to."""


@pytest.mark.ward
@pytest.mark.parametrize(("steps", "without"), [("20", {RunHistory.label()}), ("all", set())])
def test_run_makes_the_sections_of_a_run(steps: str, without: set[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    start = ("torchrun", "--nproc-per-node", "1", "train.py")
    found, absent = made_by(tmp_path, "run", "--steps", steps, "--", *start)
    assert found <= sections_of("run")
    assert found | absent >= sections_of("run") - NOT_ALWAYS - without
