"""Shell lines in other files: a target of a Makefile, the ``run`` of a SkyPilot task.

Source: gnu.org/software/make, "Recipes"; docs.skypilot.co, "SkyPilot YAML" and "Environment
Variables".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddoctor.evidence.launch import Setting
from ddoctor.launch import files
from ddoctor.launch.yaml_nodes import get, items, line, setting, text

MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
ASSIGNED = re.compile(r"(?:export\s+)?(?P<name>\w{1,100})\s*(?P<sign>[?:+]?:?=)\s*(?P<value>.*)")
TARGET = re.compile(r"(?P<names>[\w./ -]{1,200}?)\s*:(?!=)")
REFERENCE = re.compile(r"\$[({](?P<name>\w{1,100})[)}]")
MOST_NESTED = 5
"""Variables within each other."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Lines of a shell, each at its place in the file."""

    name: str
    text: str
    variables: tuple[Setting, ...] = ()
    settings: tuple[Setting, ...] = ()


def read(words: Sequence[str], folder: Path) -> Recipe | None:
    """The shell lines of ``make TARGET`` or ``sky launch FILE``; None: it is another command.

    Raises:
        DoctorError: the file cannot be read, or is no YAML.
    """
    if words and words[0] == "make":
        return _of_make(words[1:], folder)
    if len(words) > 1 and words[0] == "sky" and {"launch", "exec"} & {*words[1:3]}:
        named = (one for one in words if one.endswith((".yaml", ".yml")))
        name = next((one for one in named if files.is_there(folder / one)), "")
        return _of_sky(name, folder) if name else None
    return None


def _of_make(words: Sequence[str], folder: Path) -> Recipe | None:
    name = next((one for one in MAKEFILES if files.is_there(folder / one)), "")
    if not name or any(one in ("-f", "-C") for one in words):
        return None
    given = dict(one.split("=", 1) for one in words if "=" in one and one[:1] != "-")
    targets = [one for one in words if "=" not in one and one[:1] != "-"]
    known: dict[str, str] = {}
    rows: list[str] = []
    inside, first = False, ""
    for row in files.text(folder / name, name).splitlines():
        recipe = row.startswith("\t")
        if not recipe and (match := ASSIGNED.match(row)):
            known[match["name"]] = match["value"].partition(" #")[0].strip()
        elif not recipe and (match := TARGET.match(row)):
            # Such as `.PHONY: train`.
            first = first or match["names"].split()[0] * (row[0] != ".")
            inside = bool({*match["names"].split()} & {*(targets or [first])})
        rows.append(row.strip().lstrip("@-+") if recipe and inside else "")
    known |= given
    return Recipe(name=name, text="\n".join(_filled(row, known) for row in rows))


def _filled(row: str, known: dict[str, str]) -> str:
    for _ in range(MOST_NESTED):
        row = REFERENCE.sub(lambda match: known.get(match["name"], match[0]), row)
    return row.replace("$$", "$")


def _of_sky(name: str, folder: Path) -> Recipe | None:
    for document in files.documents(folder / name, name):
        run, nodes = get(document, "run"), get(document, "num_nodes")
        if run is None:
            continue
        count = text(nodes) if nodes is not None else "1"
        asked = get(get(document, "resources"), "accelerators")
        gpus = next(items(asked), (text(asked), None))
        each = text(gpus[1]) if gpus[1] is not None else text(asked).partition(":")[2] or "1"
        at = line(run)
        variables = [
            Setting(name=key, value=text(value), file=name, line=line(value))
            for key, value in items(get(document, "envs"))
        ]
        own = {"SKYPILOT_NUM_NODES": count, "SKYPILOT_NUM_GPUS_PER_NODE": each}
        variables += [
            Setting(name=key, value=value, file=name, line=at) for key, value in own.items()
        ]
        settings = [setting("elsewhere", run, name)]
        if nodes is not None:
            settings.append(setting("nodes", nodes, name))
        if asked is not None:
            settings.append(Setting(name="gpus-per-host", value=each, file=name, line=line(asked)))
        return Recipe(
            name=name,
            # The text of a block begins in the line after its mark.
            text="\n" * at + text(run),
            variables=tuple(variables),
            settings=tuple(settings),
        )
    return None
