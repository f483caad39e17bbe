"""The hosts and GPUs that DeepSpeed's launcher chooses: hostfile, ``--include``, ``--exclude``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace as with_fields

from ddoctor.evidence.launch import Setting
from ddoctor.launch import files, host_names

# deepspeed/launcher/runner.py, _parse_hostfile: a line such as ``worker-1 slots=8`` for each host.
HOST = re.compile(r"\s*(?P<host>\S+)\s+slots=(?P<slots>\d{1,6})\s*(?:#.*)?")

ENV = ".deepspeed_env"


def read(given: Sequence[Setting], folder: Path) -> Iterator[Setting]:
    """Yield names and number of hosts, and ranks on each, or in all where hosts differ in them.

    ``given``: the options of the launcher.

    Raises:
        DoctorError: the hostfile cannot be read.
    """
    yield from _variables(folder)
    options = {one.name.removeprefix("deepspeed."): one for one in reversed(given)}
    hostfile = options.get("hostfile")
    slots = _slots(hostfile.value, folder) if hostfile is not None else {}
    if (one := options.get("include")) is not None:
        included = _filter(one.value)
        # runner.py, parse_resource_filter: the order of the hostfile counts.
        ordered = [*(host for host in slots if host in included), *included]
        chosen = {
            host: slots.get(host) if (numbers := included[host]) is None else len(numbers)
            for host in dict.fromkeys(ordered)
        }
        origin = Setting(name="hosts", value="", origin=f"--include={one.value}")
    elif (one := options.get("exclude")) is not None and slots:
        left_out = _filter(one.value)
        chosen = {
            host: count - len(left_out.get(host) or ())
            for host, count in slots.items()
            if left_out.get(host, ()) is not None
        }
        origin = Setting(name="hosts", value="", origin=f"--exclude={one.value}")
    else:
        chosen = dict(slots)
        origin = Setting(name="hosts", value="", file=hostfile.value if hostfile else "")
    yield from _misfits([options[one] for one in ("include", "exclude") if one in options], slots)
    counts = [count for count in chosen.values() if count is not None]
    if chosen:
        yield _of("hosts", len(chosen), origin)
        yield host_names.named(chosen, origin)
    if counts and len(counts) == len(chosen):
        if len(set(counts)) == 1:
            yield _of("ranks-per-host", counts[0], origin)
        else:
            yield _of("ranks", sum(counts), origin)


def _misfits(filters: Sequence[Setting], slots: Mapping[str, int]) -> Iterator[Setting]:
    """The hosts and the slots of a filter that the hostfile does not have, and what it has."""
    for one in filters if slots else ():
        rows = "\n".join(f"{host} slots={count}" for host, count in slots.items())
        yield with_fields(one, name="host-slots", value=rows)
        for host, numbers in _filter(one.value).items():
            if host not in slots:
                yield with_fields(one, name="absent-host", value=host)
            elif numbers and _beyond(one, numbers, slots[host]):
                yield with_fields(one, name="absent-slots", value=f"{host}:{','.join(numbers)}")


def _beyond(one: Setting, numbers: Sequence[str], count: int) -> bool:
    """Whether a host has not as many; newer versions may include the numbers 4 to 7 of 4 slots."""
    excludes = one.name.endswith("exclude") and all(map(str.isdecimal, numbers))
    return len({*numbers}) > count or (excludes and max(map(int, numbers)) >= count)


def _variables(folder: Path) -> Iterator[Setting]:
    """What all hosts get besides the variables that DeepSpeed picks itself; runner.py, main."""
    lines = files.text(folder / ENV, ENV).splitlines() if files.is_there(folder / ENV) else []
    for number, line in enumerate(lines, 1):
        key, equals, value = line.partition("=")
        if equals:
            yield Setting(name=f"env.{key.strip()}", value=value.strip(), file=ENV, line=number)


def _of(name: str, number: int, origin: Setting) -> Setting:
    return Setting(name=name, value=str(number), file=origin.file, origin=origin.origin)


def _slots(name: str, folder: Path) -> Mapping[str, int]:
    """The number of GPUs of each host; DeepSpeed starts on this host alone if there is no file."""
    path = folder / name
    lines = files.text(path, name).splitlines() if files.is_there(path) else []
    rows = [match for line in lines if (match := HOST.fullmatch(line)) and line.strip()[0] != "#"]
    return {match["host"]: int(match["slots"]) for match in rows}


def _filter(value: str) -> Mapping[str, Sequence[str] | None]:
    """The GPUs of each host in ``worker-0@worker-1:0,2``; None: all of them."""
    hosts = (part.partition(":") for part in value.split("@") if part)
    return {host: list(filter(None, numbers.split(","))) or None for host, _, numbers in hosts}
