"""What issues ask for: `python -m torch.utils.collect_env`, `accelerate env`, `ds_report`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.software import Software
from ddoctor.reading.machine.kind import Kind
from ddoctor.reading.machine.packages import NAME, VERSION, installed, normal, relevant, torch_of

# torch/utils/collect_env.py, pretty_str
FIELD = re.compile(r"^(?P<name>[A-Z][\w .?()-]{1,60}): (?P<value>.{0,300})$")
GPU = re.compile(r"^(?:GPU models and configuration: )?GPU (?P<index>\d{1,3}): (?P<name>.{1,100})$")
PIP = re.compile(rf"^\[pip3?\] ({NAME})==({VERSION})$")
CONDA = re.compile(rf"^\[conda\] ({NAME}) +({VERSION})(?: |$)")
# accelerate/commands/env.py and transformers' `env`.
OF_ACCELERATE = re.compile(
    rf"^- `?(?P<name>[A-Za-z][\w-]{{1,40}})`? version(?: \(GPU\?\))?: (?P<version>{VERSION})"
)
# deepspeed/env_report.py, debug_report
OF_DEEPSPEED = re.compile(
    r"^(?P<name>(?:torch|deepspeed) [a-z]{2,20}(?: [a-z]{2,20})?) \.{2,} (?P<value>.{0,300})$"
)


def _of_torch(lines: Sequence[str]) -> Iterator[Software | Gpus]:
    told = {row["name"]: row["value"] for line in lines if (row := FIELD.match(line))}
    versions = _versions(lines)
    version = told.get("PyTorch version", "")
    cuda = told.get("CUDA used to build PyTorch", "")
    python = re.match(r"[\d.]{3,12}", told.get("Python version", ""))
    if re.fullmatch(VERSION, version):
        # What torch itself does not know, it was built without.
        built = cuda if re.fullmatch(r"\d{1,3}\.\d{1,3}", cuda) else None
        torch = torch_of(version, versions, built if cuda else "")
        yield Software(python=python[0] if python else "", torch=torch, packages=relevant(versions))
    elif versions:
        # A part of the output, as people paste it.
        yield installed(versions)
    gpus = [row for line in lines if (row := GPU.match(line))]
    driver = re.fullmatch(r"\d[\d.]{2,20}", told.get("Nvidia driver version", ""))
    if gpus and driver:
        yield Gpus(
            driver=driver[0],
            gpus=tuple(
                Gpu(index=int(row["index"]), name=row["name"], memory_total=0, memory_used=0)
                for row in gpus
            ),
        )


def _versions(lines: Sequence[str]) -> Mapping[str, str]:
    rows = [row for line in lines if (row := PIP.match(line) or CONDA.match(line))]
    # The rows of pip say what Python imports, also within an environment of conda.
    return {normal(row[1]): row[2] for row in sorted(rows, key=lambda row: row.re is PIP)}


def _of_accelerate(lines: Sequence[str]) -> Iterator[Software]:
    rows = [row for line in lines if (row := OF_ACCELERATE.match(line))]
    versions = {normal(row["name"]): row["version"] for row in rows}
    torch = versions.get("pytorch", "")
    if versions:
        yield Software(
            python=versions.get("python", ""),
            torch=torch_of(torch) if torch else None,
            packages=relevant(versions),
        )


def _of_deepspeed(lines: Sequence[str]) -> Iterator[Software]:
    told = {row["name"]: row["value"] for line in lines if (row := OF_DEEPSPEED.match(line))}
    version, cuda = told.get("torch version", ""), told.get("torch cuda version", "")
    deepspeed = re.match(VERSION, told.get("deepspeed info", ""))
    if re.fullmatch(VERSION, version):
        yield Software(
            torch=torch_of(version, {}, cuda if re.fullmatch(r"\d{1,3}\.\d{1,3}", cuda) else ""),
            packages=relevant({"deepspeed": deepspeed[0]} if deepspeed else {}),
        )


COLLECT_ENV = Kind(
    name="collect_env",
    holds=("pytorch version: ", "[pip] ", "[pip3] "),
    begins=re.compile(rf"^(?:PyTorch version: \S|\[pip3?\] {NAME}==)"),
    # Also the output of lscpu, and the libraries of cuDNN.
    goes_on=re.compile(
        r"^(?:[^:]{1,60}:(?: .*)?|\[(?:pip3?|conda)\] .*|GPU \d.*|/.*|Versions of .*)$"
    ),
    read=_of_torch,
)
ACCELERATE_ENV = Kind(
    name="accelerate env",
    holds=("` version: ",),
    begins=re.compile(r"^- `(?:[Aa]ccelerate|transformers)` version: \S"),
    goes_on=re.compile(r"^- \S.*"),
    read=_of_accelerate,
)
DS_REPORT = Kind(
    name="ds_report",
    holds=("deepspeed general environment info",),
    begins=re.compile(r"^DeepSpeed general environment info:"),
    goes_on=re.compile(r"^[a-z][\w ./()]{3,60} \.{2,} "),
    read=_of_deepspeed,
)
