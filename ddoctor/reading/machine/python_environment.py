"""An environment that Python printed: `os.environ`, a dict of texts, or a JSON object of texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddoctor.evidence.software import Environment
from ddoctor.reading.machine.kind import Kind
from ddoctor.reading.machine.variables import of_values

BEFORE = r"^(?:.{0,60}\benviron\(\{|[ \t]{0,8}\{?)"
KEY = r"""['"][A-Za-z_]\w{0,100}['"]: ?['"]"""
PAIR = re.compile(
    r"""(?P<mark>['"])(?P<name>[A-Za-z_]\w{0,100})(?P=mark): ?"""
    r"""(?:'(?P<single>(?:[^'\\]|\\.){0,10000})'|"(?P<double>(?:[^"\\]|\\.){0,10000})")"""
)
FEWEST = 8
"""Variables of an environment; a configuration of a few names may have the same form."""
OF_SHELLS = ("PATH", "HOME", "PWD", "HOSTNAME", "USER", "SLURM_JOB_ID")
"""Variables of which each process has one."""


def _read(lines: Sequence[str]) -> Iterator[Environment]:
    pairs = (pair for line in lines for pair in PAIR.finditer(line))
    values = {one["name"]: one["single"] or one["double"] or "" for one in pairs}
    if len(values) >= FEWEST and any(name in values for name in OF_SHELLS):
        yield from of_values(values)


KIND = Kind(
    name="os.environ",
    holds=("environ({", *(f"{mark}{name}" for mark in "'\"" for name in ("slurm_", "cuda_v"))),
    begins=re.compile(BEFORE + KEY),
    # pprint continues a long text in the next line.
    goes_on=re.compile(
        rf"""^[ \t]{{0,80}}(?:\{{?{KEY}|['"].{{0,10000}}['"][,}})]{{0,3}}$|\}}\)?$)"""
    ),
    read=_read,
)
FIRST = replace(
    KIND, holds=(), begins=re.compile(BEFORE + r"""['"][A-Z][A-Z_0-9]{1,60}['"]: ?['"]""")
)
"""The same at the beginning of a file, where also longer lines are looked at."""
