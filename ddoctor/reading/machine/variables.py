"""`env`, `printenv`, `export`: the environment variables that control a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ddoctor import knowledge
from ddoctor.evidence.known_software import KnownVariables
from ddoctor.evidence.software import Environment, Variable
from ddoctor.reading.machine.kind import Kind
from ddoctor.reading.prefixes import HOST

LINE = re.compile(r"^(?:export |declare -x )?(?P<name>[A-Za-z_]\w{0,100})=(?P<value>.{0,10000})$")


def _read(lines: Sequence[str]) -> Iterator[Environment]:
    values = {row["name"]: _bare(row["value"]) for line in lines if (row := LINE.match(line))}
    yield from of_values(values)


def of_values(values: Mapping[str, str]) -> Iterator[Environment]:
    """The environment with these variables, as far as they are collected."""
    known = knowledge.load(KnownVariables)
    host = values.get("HOSTNAME", "")
    found = [name for name in sorted(values) if known.collects(name)]
    # The arguments of a script are printed in the same form.
    if not found and "PATH" not in values:
        return
    yield Environment(
        host=host if re.fullmatch(HOST, host) else "",
        variables=tuple(Variable(name=name, value=values[name]) for name in found),
    )


def _bare(value: str) -> str:
    """A value without the quotes that a shell prints around it."""
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


KIND = Kind(
    name="env",
    begins=re.compile(r"^(?:export |declare -x )?[A-Za-z_]\w{0,100}=(?! )"),
    # A function of the shell has several lines.
    goes_on=re.compile(r"^(?:(?:export |declare -x )?[A-Za-z_]\w{0,100}(?:%%)?=|[ \t}])"),
    read=_read,
    command=re.compile(r"(?:env|printenv|export|declare -x)(?: *\|.*)?$"),
    # A script sets a few; each shell has more.
    fewest=8,
)
