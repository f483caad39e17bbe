"""Finds the outputs of commands in a text, and makes one section of each kind for each host."""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import inf

from msgspec.structs import replace

from ddoctor.evidence.network import Network
from ddoctor.evidence.printed import PrintedOutput, PrintedOutputs
from ddoctor.evidence.printed_figures import PrintedMemory, PrintedTimes
from ddoctor.evidence.section import Evidence, Section
from ddoctor.evidence.software import Environment
from ddoctor.reading.machine import (
    dcgmi_nvlink,
    environment_reports,
    file_systems,
    gpu_diagnostic,
    gpu_diagnostic_table,
    ifconfig,
    interfaces,
    ip_brief,
    iteration_lines,
    kernel_lines,
    lightning_profile,
    limits,
    memory,
    memory_summary,
    nccl_tests,
    nccl_topology,
    nvidia_smi,
    nvidia_smi_csv,
    nvidia_smi_nvlink,
    nvidia_smi_query,
    nvidia_smi_topology,
    packages,
    peer_bandwidth,
    processors,
    python_environment,
    rdma,
    step_timers,
    variables,
)
from ddoctor.reading.machine.kind import Kind
from ddoctor.reading.machine.merging import merged
from ddoctor.reading.prefixes import HOST, Said

KINDS: Sequence[Kind] = (
    nvidia_smi.KIND,
    nvidia_smi.PROCESSES,
    nvidia_smi_query.KIND,
    nvidia_smi_csv.KIND,
    nvidia_smi_topology.KIND,
    nvidia_smi_nvlink.KIND,
    dcgmi_nvlink.STATUS,
    dcgmi_nvlink.ERRORS,
    kernel_lines.KIND,
    environment_reports.COLLECT_ENV,
    environment_reports.ACCELERATE_ENV,
    environment_reports.DS_REPORT,
    packages.LIST,
    packages.FREEZE,
    variables.KIND,
    python_environment.KIND,
    python_environment.FIRST,
    limits.KIND,
    file_systems.KIND,
    memory.KIND,
    processors.KIND,
    interfaces.KIND,
    ip_brief.KIND,
    ifconfig.KIND,
    rdma.KIND,
    rdma.DEVINFO,
    nccl_tests.KIND,
    nccl_topology.KIND,
    peer_bandwidth.KIND,
    gpu_diagnostic.KIND,
    gpu_diagnostic_table.KIND,
    iteration_lines.KIND,
    lightning_profile.KIND,
    step_timers.KIND,
    memory_summary.KIND,
)
OF_BEGINNINGS = tuple(one for one in KINDS if not one.holds)
"""Those that are recognised at the beginning of a file."""
MAY_BEGIN = re.compile(rb"""[=@#$%+'"](?:(?<==)|(?<= @) |(?<=[#$%+]) +[A-Za-z]|(?<=['"]): ?['"])""")
"""What each of their first lines holds, and each prompt: a fast test beforehand. Python looks for
a character of one set six times as fast as for several beginnings."""
OF_RUNS = (PrintedTimes, PrintedMemory)
"""Sections of a run, whose host does not matter; their tables have a place."""
MOST_LINES = 20_000
"""Lines that are kept of an output; 64 GPUs have 12,000 in `nvidia-smi -q`."""
MOST_CHARACTERS = 2**20
"""Characters that are kept of an output."""
MOST_OUTPUTS = 2_000
"""Outputs whose sections are kept, the latest ones, and those that are read at the same time."""
MOST_BLANK = 3
"""Blank lines after which an output is over."""

PROMPT = re.compile(
    rf"^(?:\([\w.-]{{1,60}}\) )?"
    rf"(?:\[?[A-Za-z_][\w.-]{{0,60}}@(?P<host>{HOST})\b[^#$%>]{{0,200}}\]?)?"
    r" ?[#$%+]+ +(?P<command>[A-Za-z]\S{0,300}(?: .{0,300})?)$"
)
PROMPTS = ("$ ", "# ")
"""Texts of which each prompt holds one."""
HOSTNAME = re.compile(r"hostname(?: -[fs])?")
ELSEWHERE = re.compile(r"^(?:sudo )?(?:ssh|srun|pdsh|clush|kubectl|docker|podman|salloc)\b")
"""Commands whose output is of another host."""


@dataclass(kw_only=True)
class _Open:
    """An output that is being read."""

    kind: Kind
    host: str
    """Empty: not known."""
    file: str
    rank: int | None
    """The rank that wrote it; None: not known."""
    line: int
    asked: bool
    """Whether its command stands before it."""
    lines: list[str] = field(default_factory=list)
    blank: int = 0
    characters: int = 0
    last: int = 0
    """Number of the last line that was taken."""

    @property
    def writer(self) -> str:
        """The rank that wrote it; empty: not known."""
        return "" if self.rank is None else f"rank {self.rank}"

    def take(self, text: str, number: int) -> None:
        """Add a line."""
        self.last = number
        self.characters += len(text)
        if len(self.lines) < MOST_LINES and self.characters <= MOST_CHARACTERS:
            self.lines.append(text)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """An output with the sections that it made."""

    now: _Open
    sections: tuple[Section, ...]

    @property
    def source(self) -> tuple[str, str]:
        """The file, and the writer within it: outputs of one source are of one host."""
        return self.now.file, self.now.writer

    @property
    def of_run(self) -> bool:
        """Whether it is about the run, not about a host."""
        return isinstance(self.sections[0], OF_RUNS)


@dataclass
class Outputs:
    """Those of all files."""

    unfinished: dict[object, _Open] = field(default_factory=dict)
    """Those to which the next lines may belong."""
    _scattered: dict[object, _Open] = field(default_factory=dict)
    _found: deque[_Found] = field(default_factory=partial(deque, maxlen=MOST_OUTPUTS))
    """Of one command, the last output counts."""
    _host: str = ""
    """The host of the last prompt of the file."""
    named_at: int = 0
    """Number of the line that is the name of the host; 0: none is."""

    def feed(self, said: Said, file: str, number: int, kinds: Sequence[Kind] = KINDS) -> None:
        """Take the next line of a file, without its prefixes; ``kinds``: those that may begin."""
        source = (file, said.writer)
        text = said.text.rstrip()
        now = self.unfinished.get(source)
        if now is not None:
            if not text and now.blank < MOST_BLANK:
                now.blank += 1
                now.take(text, now.last)
                return
            if now.kind.goes_on.match(text):
                now.blank = 0
                now.take(text, number)
                return
            self._close(source)
        if number == self.named_at and re.fullmatch(HOST, text):
            self._host = text
            return
        kind = next((one for one in kinds if one.begins.match(text)), None)
        if kind is None:
            if prompt := PROMPT.match(text):
                self._prompt(prompt, source, said, file, number)
            return
        where = self._scattered if kind.scattered else self.unfinished
        key = (source, kind.name, self._host) if kind.scattered else source
        if len(where) < MOST_OUTPUTS:
            where.setdefault(key, self._new(kind, said, file, number)).take(text, number)

    def _prompt(
        self, prompt: re.Match[str], source: object, said: Said, file: str, number: int
    ) -> None:
        command = prompt["command"]
        elsewhere = ELSEWHERE.match(command) is not None
        if prompt["host"] or elsewhere:
            self._host = "" if elsewhere else prompt["host"]
        self.named_at = number + 1 if HOSTNAME.fullmatch(command) else 0
        for kind in KINDS:
            if kind.command is not None and kind.command.match(command):
                self.unfinished[source] = self._new(kind, said, file, number, asked=True)
                return

    def _new(self, kind: Kind, said: Said, file: str, number: int, *, asked: bool = False) -> _Open:
        return _Open(
            kind=kind,
            host=said.host or self._host,
            file=file,
            rank=said.rank,
            line=number,
            asked=asked,
            last=number,
        )

    def ended(self) -> None:
        """Close what is open at the end of a file."""
        for source in [*self.unfinished]:
            self._close(source)
        for now in self._scattered.values():
            self._keep(now)
        self._scattered.clear()
        self._host, self.named_at = "", 0

    def _close(self, source: object) -> None:
        self._keep(self.unfinished.pop(source))

    def _keep(self, now: _Open) -> None:
        while now.lines and not now.lines[-1]:
            now.lines.pop()
        if len(now.lines) < (1 if now.asked else now.kind.fewest):
            return
        try:
            sections = tuple(_placed(one, now) for one in now.kind.read(now.lines))
        except ValueError:
            # What is damaged is read as any other text.
            return
        finally:
            now.lines.clear()
        if sections:
            self._found.append(_Found(now=now, sections=sections))

    def tells(self) -> Callable[[str, int], bool]:
        """Whether a line of a file belongs to an output that made a section."""
        spans: dict[str, list[tuple[int, int]]] = {}
        for one in self._found:
            if not one.now.kind.scattered:
                spans.setdefault(one.now.file, []).append((one.now.line, one.now.last))
        starts = {file: sorted(rows) for file, rows in spans.items()}
        # Outputs of several ranks may overlap.
        ends = {
            file: [*accumulate((last for _, last in rows), max)] for file, rows in starts.items()
        }

        def tell(file: str, number: int) -> bool:
            place = bisect_right(starts.get(file, []), (number, inf)) - 1
            return place >= 0 and number <= ends[file][place]

        return tell

    def sections(self, bundles: Evidence) -> Iterator[Section]:
        """The sections that the bundles do not have."""
        named = [*self._named(bundles)]
        together: dict[tuple[type[Section], str], Section] = {}
        for host, one in (*named, *(("", one) for one in self._found if one.of_run)):
            for section in one.sections:
                new = replace(section, host=section.host or host, printed=True)
                key = (type(new), new.host)
                together[key] = merged(together[key], new) if key in together else new
        for (_, host), section in [*together.items()]:
            environment = together.get((Environment, host))
            if isinstance(section, Network) and isinstance(environment, Environment):
                together[Network, host] = interfaces.with_settings(section, environment)
        known = {(type(one), one.host) for one in bundles}
        yield from (section for key, section in together.items() if key not in known)
        if named:
            yield PrintedOutputs(
                outputs=tuple(
                    PrintedOutput(
                        command=one.now.kind.name,
                        file=one.now.file,
                        line=one.now.line,
                        host=one.sections[0].host or host,
                    )
                    for host, one in named
                )
            )

    def _named(self, bundles: Evidence) -> Iterator[tuple[str, _Found]]:
        """Each output with its host; empty: all are of the only host.

        Where several hosts might be meant, an output without a host is named by its folder or file.
        """
        found = [one for one in self._found if not one.of_run]
        hosts: dict[tuple[str, str], set[str]] = {}
        kinds: dict[type[Section], set[object]] = {}
        for one in found:
            told = {section.host or one.now.host for section in one.sections} - {""}
            hosts.setdefault(one.source, set()).update(told)
        for one in found:
            name: object = _only(hosts[one.source]) or one.source
            for section in one.sections:
                kinds.setdefault(type(section), set()).add(section.host or one.now.host or name)
        for section in bundles:
            kinds.setdefault(type(section), set()).add(section.host)
        several = len(set().union(*hosts.values())) > 1
        unclear = several or any(len(sources) > 1 for sources in kinds.values())
        folders = {posixpath.dirname(file) for file, _ in hosts}
        for one in found:
            host = one.now.host or _only(hosts[one.source])
            if not host and unclear:
                file, writer = one.source
                place = posixpath.dirname(file) if len(folders) > 1 else file
                host = f"{place or file} {writer}".strip()
            yield host, one


def _placed(section: Section, now: _Open) -> Section:
    """The section, whose tables know where they stand."""
    if not isinstance(section, OF_RUNS):
        return section
    tables = (replace(one, file=now.file, line=now.line, rank=now.rank) for one in section.tables)
    return replace(section, tables=tuple(tables))


def _only(hosts: set[str]) -> str:
    """The only one; empty: none, or several."""
    return next(iter(hosts)) if len(hosts) == 1 else ""
