"""`pip list` and `pip freeze`: the installed packages, and what torch was built for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ddoctor import knowledge
from ddoctor.evidence.known_software import Combinations
from ddoctor.evidence.software import Package, Software, Torch
from ddoctor.reading.machine.kind import Kind

NAME = r"[A-Za-z0-9](?:[\w.-]{0,100})"
VERSION = r"\d[\w.+!-]{0,60}"
ROW = re.compile(rf"^({NAME}) +({VERSION})(?: |$)")
FROZEN = re.compile(rf"^({NAME})==({VERSION})$")

# The build that a wheel of torch names behind its version: +cu121, +cpu, +rocm6.0.
BUILD = re.compile(r"\+(?:(?P<cuda>cu\d{3,4})|(?P<cpu>cpu)|rocm(?P<rocm>[\d.]{1,12}))\b")
# CUDA's own library, which a wheel of torch without a name of its build requires.
RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")
NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
NOT_KNOWN = ""


def normal(name: str) -> str:
    """A package's name as it is compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def relevant(versions: Mapping[str, str]) -> tuple[Package, ...]:
    """The packages that a collector would name."""
    wanted = knowledge.load(Combinations).packages
    return tuple(Package(name=name, version=versions[name]) for name in wanted if name in versions)


def torch_of(version: str, versions: Mapping[str, str] = {}, cuda: str | None = NOT_KNOWN) -> Torch:
    """The torch of a version; ``cuda``: of its build, None: built without, empty: not known."""
    hip = None
    if match := BUILD.search(version):
        digits = (match["cuda"] or "").removeprefix("cu")
        cuda, hip = (f"{digits[:-1]}.{digits[-1]}" if digits else None), match["rocm"]
    elif cuda == NOT_KNOWN:
        runtime = next((versions[one] for one in RUNTIMES if one in versions), NOT_KNOWN)
        cuda = ".".join(runtime.split(".")[:2])
    wheels = [versions[one] for one in NCCL if one in versions]
    return Torch(version=version, cuda=cuda, hip=hip, nccl=wheels[0] if len(wheels) == 1 else None)


def installed(versions: Mapping[str, str]) -> Software:
    """What is known where only the versions of packages are."""
    return Software(
        torch=torch_of(versions["torch"], versions) if "torch" in versions else None,
        packages=relevant(versions),
    )


def _read(lines: Sequence[str]) -> Iterator[Software]:
    rows = (ROW.match(line) or FROZEN.match(line) for line in lines)
    if versions := {normal(row[1]): row[2] for row in rows if row is not None}:
        yield installed(versions)


LIST = Kind(
    name="pip list",
    holds=("package  ",),
    begins=re.compile(r"^Package +Version(?: +\S.{0,60})?$"),
    goes_on=re.compile(rf"^(?:-{{3}}[- ]*|{NAME} +{VERSION}(?: .*)?)$"),
    read=_read,
)
FREEZE = Kind(
    name="pip freeze",
    begins=re.compile(rf"^{NAME}(?:=={VERSION}| @ \S+)$"),
    goes_on=re.compile(rf"^(?:{NAME}(?:=={VERSION}| @ \S+)|-e \S+|# Editable .*)$"),
    read=_read,
    command=re.compile(
        r"^(?:(?:\S{1,200}/)?python[\d.]{0,9} -m )?(?:\S{1,200}/)?pip[\d.]{0,9} freeze\b"
    ),
    # What a project asks for in its requirements is shorter, and need not be installed.
    fewest=30,
)
