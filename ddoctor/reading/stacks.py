"""Stacks of running processes, as py-spy, faulthandler and gdb print them, each in one dump."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace as with_fields

from ddoctor.analysis.stack_activities import Met
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import Activity, LiveLook, LiveRank, LiveWorker
from ddoctor.evidence.section import Unseen
from ddoctor.reading.libraries import LIBRARY, NATIVE
from ddoctor.reading.prefixes import Said

MOST_FRAMES = 500
MOST_STACKS = 20_000
"""Processes whose stacks are kept, the first ones."""
MOST_GROUPED = 10_000
"""Threads that share a printed stack."""
MAIN = "MainThread"

# py-spy dump; people group the threads of equal stacks, one line each.
PY_SPY = re.compile(
    r"^\s*Thread (?P<thread>\d{1,10}|0x[0-9A-Fa-f]{1,16}) \((?P<state>\w[\w+]{0,20})\)"
    r'(?:: "(?P<name>[^"]{0,200})")?\s*$'
)
PY_SPY_FRAME = re.compile(
    r"^\s+(?P<function>\S[^()]{0,300}) \((?P<file>[^()]{1,1000}?)(?::(?P<line>\d{1,9}))?\)\s*$"
)
# Python's faulthandler: on a signal, after a time, or at a fatal error; gdb's py-bt.
OTHERS = re.compile(
    r"^\s{0,4}(?:(?P<current>Current )?[Tt]hread 0x(?P<thread>[0-9a-fA-F]{1,16})(?: \[.{0,100}\])?"
    r"|Stack|Traceback) \(most recent call first\):\s*$"
)
OTHERS_FRAME = re.compile(
    r'^\s+File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9}),? in (?P<function>.{1,300})$'
)
FATAL = "Fatal Python error: "

# The first folder, or the whole name, of a file that py-spy shortened, where no one keeps own code.
PACKAGES = re.compile(
    r"^(?:torch\w*|deepspeed|accelerate|transformers|trl|peft|datasets|(?:pytorch_)?lightning\w*|ray"
    r"|numpy|pandas|PIL|cv2|fsspec|aiohttp|urllib3|requests|safetensors|huggingface_hub|tokenizers"
    r"|wandb|tqdm|hydra|omegaconf|click|fire|typer|triton|apex|transformer_engine|flash_attn|timm"
    r"|webdataset|nvidia|horovod|mpi4py|filelock|<)(?:/|$|\.|>)"
)

# Who starts ranks, and waits for them.
LAUNCHERS = ("torch/distributed/elastic/agent/", "accelerate/commands/", "deepspeed/launcher/")
STARTS = ("join", "start_processes")
SPAWN = "torch/multiprocessing/spawn.py"
WORKER = "torch/utils/data/_utils/worker.py"
LOADER = "loader-wait"
UNNAMED = Unseen(
    what="which rank has which number",
    why="the dumps do not say it: they are numbered in the order of their processes",
)
IDLE, ACTIVE = "sleeping", "running"


@dataclass(kw_only=True)
class _Process:
    """What was dumped of a process, its main thread as far as that is known."""

    said: Said
    order: int
    pid: int
    active: bool
    stack: tuple[Frame, ...]
    still: bool = True
    """Whether each dump has the same stack."""

    def holds(self, *files: str) -> bool:
        return any(file in frame.file for frame in self.stack for file in files)

    @property
    def is_worker(self) -> bool:
        """Whether it is a worker of a DataLoader."""
        return self.holds(WORKER)

    @property
    def is_rank(self) -> bool:
        """Whether it trains: it is no worker and no launcher."""
        starts = any(one.file.endswith(SPAWN) and one.function in STARTS for one in self.stack)
        return not (self.is_worker or starts or self.holds(*LAUNCHERS))


@dataclass(kw_only=True)
class _Open:
    """A stack that is being read."""

    said: Said
    file: str
    form: re.Pattern[str]
    threads: list[re.Match[str]]
    frames: list[Frame] = field(default_factory=list)
    """The innermost first."""
    last: int = 0
    """Number of the last line that was taken."""

    @property
    def is_current(self) -> bool:
        """Whether it is the last of its process, which prints the others first."""
        return self.form is OTHERS_FRAME and bool(self.threads[0]["current"])


@dataclass
class Stacks:
    """Those of all files."""

    unfinished: dict[object, _Open] = field(default_factory=dict)
    """Those to which the next lines may belong."""
    _before: dict[object, _Open] = field(default_factory=dict)
    """A thread of each writer after which the main thread of the same process may come."""
    _found: dict[object, _Process] = field(default_factory=dict)
    _with_main: set[object] = field(default_factory=set)
    """Writers of whom py-spy has named a main thread: one without a name is another thread."""
    _fatal: set[object] = field(default_factory=set)
    """Writers who print the stack of a crash."""

    @staticmethod
    def begins(text: str) -> bool:
        """Whether a line begins one."""
        return bool(PY_SPY.match(text) or OTHERS.match(text)) or text.startswith(FATAL)

    def feed(self, said: Said, file: str, number: int) -> None:
        """Take the next line of a file, without its prefixes."""
        writer = (file, said.writer)
        now = self.unfinished.get(writer)
        if said.text.startswith(FATAL):
            self._fatal.add(writer)
        elif head := PY_SPY.match(said.text):
            if now is not None and now.form is PY_SPY_FRAME and not now.frames:
                now.threads += [head] * (len(now.threads) < MOST_GROUPED)
            else:
                self._begin(writer, _Open(said=said, file=file, form=PY_SPY_FRAME, threads=[head]))
        elif head := OTHERS.match(said.text):
            self._close(writer)
            before = self._before.get(writer)
            # faulthandler prints the main thread last.
            if before is not None and number > before.last + 2:
                self._keep(writer)
            self._begin(writer, _Open(said=said, file=file, form=OTHERS_FRAME, threads=[head]))
        elif now is not None:
            if frame := now.form.match(said.text):
                now.last = number
                if len(now.frames) < MOST_FRAMES and not NATIVE.search(frame["file"]):
                    now.frames.append(_frame(frame))
            elif not said.text.startswith("    "):
                # What is indented further: the line's text, or py-spy's local variables.
                self._close(writer)

    def ended(self) -> None:
        """Close what is open at the end of a file."""
        for writer in [*self.unfinished]:
            self._close(writer)
        for writer in [*self._before]:
            self._keep(writer)
        self._with_main.clear()
        self._fatal.clear()

    def _begin(self, writer: object, new: _Open) -> None:
        self._close(writer)
        self.unfinished[writer] = new

    def _close(self, writer: object) -> None:
        now = self.unfinished.pop(writer, None)
        if now is None or not now.frames:
            return
        if now.form is PY_SPY_FRAME:
            if any(head["name"] == MAIN for head in now.threads):
                self._with_main.add(writer)
            of_main = (MAIN,) if writer in self._with_main else (None, MAIN)
            for head in now.threads:
                if head["name"] in of_main:
                    self._add(now, head["thread"], active=head["state"].startswith("active"))
            return
        self._before[writer] = now
        if now.is_current:
            self._keep(writer)

    def _keep(self, writer: object) -> None:
        """Take the last thread of a process as its main thread, unless the process crashed."""
        now = self._before.pop(writer)
        if writer in self._fatal:
            self._fatal.discard(writer)
        else:
            self._add(now, now.threads[0]["thread"] or "", active=False)

    def _add(self, now: _Open, thread: str, *, active: bool) -> None:
        new = _Process(
            said=now.said,
            order=len(self._found),
            pid=int(thread) if thread.isdigit() else 0,
            active=active,
            stack=tuple(reversed(now.frames)),
        )
        named = now.said.rank is not None and new.is_rank
        key: object = (now.said.host, now.said.rank) if named else (now.file, thread)
        earlier = self._found.get(key)
        if earlier is not None:
            new.order = earlier.order
            new.still = earlier.still and earlier.stack == new.stack
        if earlier is not None or len(self._found) < MOST_STACKS:
            self._found[key] = new

    def sections(self) -> Iterator[LiveLook]:
        """The look at the ranks of each host."""
        ranks = [one for one in self._found.values() if one.is_rank]
        workers = tuple(_worker(one) for one in self._found.values() if one.is_worker)
        hosts: dict[str, list[LiveRank]] = {}
        for number, one in _numbered(ranks):
            hosts.setdefault(one.said.host, []).append(_rank(number, one))
        every = [one for rows in hosts.values() for one in rows]
        waiting = [one for one in every if one.activities[0].name == LOADER]
        named = all(one.said.rank is not None for one in ranks)
        for host, rows in hosts.items():
            yield LiveLook(
                host=host,
                job="",
                world=len(ranks),
                seconds=0.0,
                command=(),
                dumped=True,
                unseen=() if named else (UNNAMED,),
                ranks=tuple(
                    # Of several loaders, nothing says whose workers they are.
                    with_fields(one, workers=workers) if waiting == [one] else one
                    for one in rows
                ),
            )


def _numbered(ranks: Sequence[_Process]) -> Iterator[tuple[int, _Process]]:
    """The ranks with their numbers; those that nothing names are in the order of their PIDs."""
    known = {one.said.rank for one in ranks}
    free = (number for number in itertools.count() if number not in known)
    for one in sorted(ranks, key=lambda one: (one.said.host, one.pid, one.order)):
        yield next(free) if one.said.rank is None else one.said.rank, one


def _rank(number: int, one: _Process) -> LiveRank:
    met = Met.of(one.stack, on_gpu=False)
    return LiveRank(
        rank=number,
        pid=one.pid,
        state=ACTIVE if one.active else IDLE,
        age_seconds=0.0,
        cpu_seconds=0.0,
        main_cpu_seconds=0.0,
        resident=0.0,
        samples=1,
        stack=one.stack,
        still=one.still,
        activities=(
            Activity(
                name=met.name, samples=1, calls=met.calls, entered=met.entered, makes=met.makes
            ),
        ),
    )


def _worker(one: _Process) -> LiveWorker:
    state = ACTIVE if one.active else IDLE
    return LiveWorker(pid=one.pid, state=state, cpu_seconds=0.0, stack=one.stack, still=one.still)


def _frame(match: re.Match[str]) -> Frame:
    return Frame(
        file=match["file"],
        line=int(match["line"] or 0),
        function=match["function"],
        of_user=of_user(match["file"]),
    )


def of_user(file: str) -> bool:
    """Whether a file is the user's; its name may lack the folder from which Python imported it, as
    py-spy and torch's profiler leave it out."""
    first = file.removesuffix(".py").split("/")[0]
    short = PACKAGES.match(file) or first in sys.stdlib_module_names
    return not short and LIBRARY.search(file) is None
