"""Which rank and host wrote a line: what launchers, schedulers and libraries put before it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

# ANSI escapes, and what other control characters a terminal would obey.
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")

COLOUR = re.compile(r"^(?:\[\d{1,2}m)+")
NUMBER = r"\d{1,7}"
HOST = r"[A-Za-z0-9](?:[\w.-]{0,252})"
STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"

FORMS = (
    # torch puts it before an uncaught exception and before its C++ warnings.
    rf"\[rank(?P<rank>{NUMBER})\]: ?",
    # torchrun: role and local rank; the line follows at once.
    rf"\[(?!rank\d)[a-z_]{{1,40}}(?P<local>{NUMBER})\]:",
    # mpirun --tag-output: job and rank; on SageMaker with the host.
    rf"\[\d+,(?:mpirank:)?(?P<rank>{NUMBER})(?:,(?P<host>{HOST}))?\]<std(?:out|err)>: ?",
    # Ray; SkyPilot, whose rank is that of the node.
    rf"\([\w-]{{1,60}}(?:, rank=\d+,)? pid=(?P<pid>{NUMBER})"
    r"(?:, ip=(?P<host>[\w.:-]{1,60}))?\) ?",
    # Determined: container and rank.
    rf"\[{STAMP}\] [0-9a-f]{{8}} (?:\[rank=(?P<rank>{NUMBER})\] )?\|\| ?",
    # kubectl logs --prefix: pod and container.
    rf"\[pod/(?P<host>{HOST})/[\w.-]{{1,253}}\] ?",
    # TorchX: role and replica, which mostly is the node.
    rf"[A-Za-z][\w-]{{0,60}}/{NUMBER} (?=\[)",
    # A quotation in a mail or in Markdown.
    r"> ",
    # grep -n.
    rf"{NUMBER}:(?=\[)",
    # docker logs -t, kubectl logs --timestamps.
    rf"{STAMP} (?=\S)",
    # NCCL: host, process, thread and device.
    rf"(?P<host>{HOST}):(?P<pid>{NUMBER}):{NUMBER} (?=\[{NUMBER}\] )",
)
NAMED = re.compile(r"\(\?P<(\w+)>")
# In one expression a name stands once: the groups count, and have the names at their places.
ANY = re.compile("|".join(NAMED.sub("(", form) for form in FORMS))
NAMES = tuple(NAMED.findall("".join(FORMS)))
# These look like ordinary text, so that nearly each line of a file must begin with them, or the
# rest of one is what a process begins a line with.
LABEL = re.compile(rf"^ *(?P<rank>{NUMBER}): ")
# mpiexec -prepend-rank of MPICH, -l of Intel MPI. Several lines of one rank alone may be a list.
PREPENDED = re.compile(rf"^\[(?P<rank>{NUMBER})\] ")
# Names of hosts in a cluster have a number, and levels such as INFO have none.
PDSH = re.compile(rf"(?=[A-Za-z.-]{{0,60}}\d)(?P<host>{HOST}): (?=\S)")
BEGINNING = re.compile(rf"\[rank{NUMBER}\]: ?|Traceback \(most recent call last\):")

# torchrun --log-dir has a folder for each local rank; others put the rank into the name of the
# file, or of its folder.
FILE = re.compile(
    rf"attempt_\d+/(?P<local>{NUMBER})/std(?:out|err)\.log"
    rf"|(?:^|[/_.-])rank[_.-]?(?P<rank>{NUMBER})(?=[/_.-][^/]*$|$)"
)

# What torch and NCCL say of themselves within a line.
WITHIN = re.compile(
    rf"\[(?:PG ID \d+ PG GUID [^\]]{{0,60}} )?Rank (?P<rank>{NUMBER})\]"
    rf"|\[rank: (?P<lightning>{NUMBER})\]",
)


class Writer(NamedTuple):
    """Who wrote a line, as far as its prefixes say it."""

    rank: int | None
    local: int | None
    host: str
    pid: int | None


class Said(NamedTuple):
    """A line without what was put before it, and who wrote it."""

    text: str
    rank: int | None = None
    about: int | None = None
    """The rank that the line itself names."""
    local: int | None = None
    host: str = ""
    pid: int | None = None

    @property
    def writer(self) -> Writer:
        """The same for all lines of one process, as far as the lines say it."""
        return Writer(self.rank, self.local, self.host, self.pid)


def of_file(path: Path) -> Said:
    """What the path of a file says about the writer of its lines."""
    match = FILE.search(str(path.absolute()))
    if match is None:
        return Said("")
    rank, local = match["rank"], match["local"]
    return Said("", rank=int(rank) if rank else None, local=int(local) if local else None)


def parsed(line: str, label: re.Pattern[str] | None = None) -> Said:
    """Take off the prefixes; ``label``: the one with which nearly each line of the file begins."""
    if "\x1b" in line:
        line = ESCAPES.sub("", line)
    # Copied from a page, an escape may have lost its first character.
    text = COLOUR.sub("", line)
    told: dict[str, str] = {}
    if label is not None and (match := label.match(text)):
        told.update(match.groupdict())
        text = text[match.end() :]
    for _ in range(len(FORMS)):
        if not (match := ANY.match(text)):
            break
        # A time alone says nothing of the writer.
        if match.lastindex:
            told |= {n: value for n, value in zip(NAMES, match.groups(), strict=True) if value}
        text = text[match.end() :]
    within = WITHIN.search(text) if "ank" in text else None
    rank, local, pid = told.get("rank"), told.get("local"), told.get("pid")
    return Said(
        text,
        rank=int(rank) if rank else None,
        about=int(within["rank"] or within["lightning"]) if within is not None else None,
        local=int(local) if local else None,
        host=told.get("host", ""),
        pid=int(pid) if pid else None,
    )


def label_before(text: str) -> re.Pattern[str] | None:
    """The label of a line whose rest is what a process begins a line with; None: none.

    DeepSpeed's launcher and a job's script write lines without one, too.
    """
    for label in (LABEL, PREPENDED):
        if (match := label.match(text)) and BEGINNING.match(text, match.end()):
            return label
    if (match := PDSH.match(text)) and BEGINNING.match(text, match.end()):
        # Other hosts have other numbers.
        alike = re.sub(r"\d+", r"\\d+", re.escape(match["host"]))
        return re.compile(rf"(?P<host>{alike}): (?=.)")
    return None


def label_of(lines: list[str]) -> re.Pattern[str] | None:
    """The label that srun, mpiexec or pdsh puts before nearly each of these lines; None: none."""
    written = [line for line in lines if line.strip()]
    for label in (LABEL, PREPENDED, PDSH):
        labelled = [match for line in written if (match := label.match(line))]
        names = {match.group(1) for match in labelled}
        most = len(written) > 3 and len(labelled) > 0.8 * len(written)
        if most and (label is LABEL or len(names) <= len(written) // 2):
            return label
    return None
