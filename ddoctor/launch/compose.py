"""Reads the command of a service in a file of Docker Compose, and the GPUs that it gets.

Keys as docs.docker.com/reference/compose-file says ("Services", "Compose Deploy Specification").
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddoctor.evidence.launch import Setting
from ddoctor.launch import files
from ddoctor.launch.words import Command, Word
from ddoctor.launch.yaml_nodes import get, items, line, rows, setting, text

NAMES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
STARTS = ("up", "run", "create")


def commands(words: Sequence[str], folder: Path) -> list[Command]:
    """The commands of the services that ``docker compose up`` or ``run`` starts; none: not this.

    Raises:
        DoctorError: the file cannot be read, or is no YAML.
    """
    start = _after_compose(words)
    begin = next((at for at in range(start, len(words)) if words[at] in STARTS), len(words))
    if not start or begin == len(words):
        return []
    chosen = [
        words[at + 1]
        for at in range(start, begin - 1)
        if words[at] in ("-f", "--file") and at + 1 < begin
    ]
    name = next((one for one in (*chosen, *NAMES) if files.is_there(folder / one)), "")
    if not name:
        return []
    wanted = {one for one in words[begin + 1 :] if not one.startswith("-")}
    services = [
        (key, service)
        for document in files.documents(folder / name, name)
        for key, service in items(get(document, "services"))
    ]
    some = [service for key, service in services if key in wanted]
    return [_command(one, name) for one in some or [service for _, service in services]]


def _after_compose(words: Sequence[str]) -> int:
    """The place after ``docker compose`` or ``docker-compose``; 0: it is neither."""
    if words and words[0] == "docker-compose":
        return 1
    return 2 if tuple(words[:2]) in (("docker", "compose"), ("podman", "compose")) else 0


def _command(service: Any, name: str) -> Command:
    words = (*_words(get(service, "entrypoint"), name), *_words(get(service, "command"), name))
    return Command(
        words=words,
        variables=tuple(_variables(get(service, "environment"), name)),
        settings=tuple(_settings(service, name)),
    )


def _words(node: Any, name: str) -> Iterator[Word]:
    """The words of a list, or of a text that Compose splits as a shell does."""
    parts = rows(node) or ([node] if node is not None else [])
    for one in parts:
        split = [text(one)]
        if node is one:
            with suppress(ValueError):
                split = shlex.split(text(one))
        # Compose writes a dollar for the shell of the container as two.
        for part in split:
            yield Word(text=part.replace("$$", "$"), file=name, line=line(one))


def _variables(node: Any, name: str) -> Iterator[Setting]:
    for key, value in items(node):
        yield Setting(name=key, value=text(value), file=name, line=line(value))
    for one in rows(node):
        key, equals, value = text(one).partition("=")
        if equals:
            yield Setting(name=key, value=value, file=name, line=line(one))


def _settings(service: Any, name: str) -> Iterator[Setting]:
    for key in ("container", "elsewhere"):
        yield Setting(name=key, value="docker compose", file=name, line=line(service))
    if (shm := get(service, "shm_size")) is not None:
        yield setting("shm", shm, name)
    if text(ipc := get(service, "ipc")) == "host":
        yield Setting(name="host-ipc", value="true", file=name, line=line(ipc))
    resources = get(get(service, "deploy"), "resources")
    limit = get(get(resources, "limits"), "cpus") or get(service, "cpus")
    if limit is not None:
        yield setting("cpus-per-host", limit, name)
    for one in rows(get(get(resources, "reservations"), "devices")):
        named, count = rows(get(one, "device_ids")), get(one, "count")
        if named:
            value = ",".join(map(text, named))
            yield Setting(name="devices", value=value, file=name, line=line(named[0]))
        elif text(count).isdigit():
            yield setting("gpus-per-host", count, name)
