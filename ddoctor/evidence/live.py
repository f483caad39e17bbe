"""What was seen from outside of a training that runs, without any preparation."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

from ddoctor.evidence.section import Part, Section
from ddoctor.evidence.training import Frame


class Block(Part, frozen=True, kw_only=True):
    """A loop or a branch of the user's code that a frame stands in."""

    file: str
    function: str
    loop: bool
    text: str
    """Its first line."""
    line: int
    end: int


class Activity(Part, frozen=True, kw_only=True):
    """What a main thread was met doing, at one line of the user's, on one way there."""

    name: str
    """A row's name of ``knowledge/frames.toml``; ``rest``: none of them."""
    samples: int
    visits: int = 1
    """How often it was come to, at whichever line: of what is done once in a look it is not known
    whether it comes again."""
    calls: tuple[Frame, ...] = ()
    """The user's own frames, the innermost last."""
    within: tuple[Block, ...] = ()
    """What that line, and those that call it, stand in; the innermost last."""
    before_skip: str = ""
    """``if step < start:`` and the like, which that line stands before or in: what a loop passes
    over; empty: nothing."""

    @property
    def line(self) -> Frame | None:
        """The innermost of the user's own frames."""
        return self.calls[-1] if self.calls else None


class Turn(Part, frozen=True, kw_only=True):
    """So many samples in a row at the same."""

    name: str
    samples: int


class LiveWorker(Part, frozen=True, kw_only=True):
    """A process that loads data for a rank."""

    pid: int
    state: str
    """psutil's name for it."""
    cpu_seconds: float
    """During the look."""
    stack: tuple[Frame, ...] = ()
    """Where its main thread was met most often, the innermost last."""
    still: bool = False
    """Whether it was there in all samples."""

    @property
    def stuck(self) -> bool:
        """Whether it stands, and not where a worker waits for what to load next."""
        idle = any(
            frame.file.endswith("torch/utils/data/_utils/worker.py")
            and after.file.endswith("multiprocessing/queues.py")
            for frame, after in pairwise(self.stack)
        )
        return self.still and not idle

    @property
    def line(self) -> Frame | None:
        """The innermost of the user's own frames."""
        return next((frame for frame in reversed(self.stack) if frame.of_user), None)


class LiveRank(Part, frozen=True, kw_only=True):
    """One rank, as it was during the look."""

    rank: int
    pid: int
    state: str
    """psutil's name for it at the end of the look, or ``gone``."""
    age_seconds: float
    cpu_seconds: float
    """Of all its threads, during the look."""
    main_cpu_seconds: float
    asleep: float | None = None
    """In what part of the time its main thread slept; 0 to 1."""
    resident: float
    """MiB."""
    held: tuple[float, ...] = ()
    """MiB at even distances of time, without what the kernel can take back."""
    workers_held: tuple[float, ...] = ()
    """The same of its loader's workers, all together."""
    swapped: float = 0.0
    """MiB that the kernel has moved to a disk."""
    faults: int = 0
    """Pages that it waited for during the look, until a disk had brought them."""
    moved: float = 0.0
    """MiB that it read and wrote during the look, files, pipes and terminals together."""
    wakes: int = 0
    """How often its main thread, having slept, went on during the look."""
    longest_sleep: float | None = None
    """The longest time, in seconds, for which it was not seen to go on; twice a second somebody
    looks. None: nobody did."""
    on_gpu: bool = False
    """Whether it has CUDA's driver in it."""
    samples: int = 0
    stack: tuple[Frame, ...] = ()
    """Where its main thread was met most often, the innermost last."""
    still: bool = False
    """Whether its main thread was there in all samples."""
    activities: tuple[Activity, ...] = ()
    """The most frequent first."""
    turns: tuple[Turn, ...] = ()
    """The same in the order of time."""
    workers: tuple[LiveWorker, ...] = ()
    unseen: str = ""
    """Why there are no stacks; empty: there are."""

    def share(self, name: str) -> float:
        """In what part of the samples it was met at this; 0 to 1."""
        met = sum(one.samples for one in self.activities if one.name == name)
        return met / self.samples if self.samples else 0.0

    def visits(self, name: str) -> int:
        """How often it came to this."""
        return max((one.visits for one in self.activities if one.name == name), default=0)

    def calls(self, name: str) -> tuple[Frame, ...]:
        """The user's own frames at which it was met at this most often, the innermost last."""
        return next((one.calls for one in self.activities if one.name == name), ())


class LiveLink(Part, frozen=True, kw_only=True):
    """The TCP connections of the ranks of one host with another host."""

    local: str
    """Address."""
    remote: str
    """Address."""
    queued: float
    """In what part of the looks something waited to be sent, or to be acknowledged; 0 to 1."""
    unread: float = 0.0
    """In what part of the looks something had come and was not yet read; 0 to 1."""
    interface: str = ""
    """That has the local address; empty: not to be seen from where ddoctor runs."""
    sent: float | None = None
    """MiB per second, by all that uses this interface."""
    speed: int | None = None
    """What the interface says of itself; Mbit/s."""


class LiveLook(Section, frozen=True, kw_only=True):
    """The ranks of one job on one host."""

    of_attaching: ClassVar[bool] = True

    job: str
    """As people call it."""
    world: int
    seconds: float
    command: tuple[str, ...]
    missing: tuple[int, ...] = ()
    """Ranks that were started on this host, and are not there."""
    supervised: bool = False
    """Whether a launcher ends all ranks as soon as one fails: then one that is missing has come to
    its own end."""
    ranks: tuple[LiveRank, ...]
    links: tuple[LiveLink, ...] = ()
    """To other hosts, as far as they are TCP."""
