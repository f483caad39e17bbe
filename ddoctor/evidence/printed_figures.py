"""What a training printed about its own time and memory."""

from __future__ import annotations

from ddoctor.evidence.section import Part, Section


class PrintedTable(Part, frozen=True, kw_only=True):
    """Where a table stands."""

    file: str = ""
    line: int = 0
    """Number of its first line, from 1."""
    rank: int | None = None
    """The rank that printed it; None: the line does not say it."""

    @property
    def place(self) -> str:
        """File and line, such as ``train.log:120``."""
        return f"{self.file}:{self.line}"

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank that printed it, if it is known."""
        return () if self.rank is None else (self.rank,)


class PhaseTimes(PrintedTable, frozen=True, kw_only=True):
    """How long the phases of training took; they overlap, as passes contain communication."""

    tool: str
    """What measured it, say ``Lightning's profiler``."""
    count: int
    """The number of batches, or of printed steps."""
    in_all: bool = False
    """Whether the seconds are those of all batches together; else they are of the median step."""
    whole: float
    """Seconds of training, of which the phases are parts."""
    loader: float | None = None
    """Seconds until the loader had the next batch."""
    passes: float | None = None
    """Seconds of the forward and backward passes."""
    communication: float | None = None
    """Seconds in collectives that no computation hides."""
    optimizer: float | None = None
    """Seconds of the optimizer step, without the collectives in it."""
    checkpoint: float | None = None
    """Seconds in which checkpoints were saved."""
    hook: str = ""
    """The slowest hook of the user's own in each batch; empty: none is known."""
    in_hook: float = 0.0
    """Seconds in it."""
    saves: int | None = None
    """The number of checkpoints; None: not known."""


class PrintedTimes(Section, frozen=True, kw_only=True):
    """The timers of Lightning's profiler, DeepSpeed and Megatron in a log."""

    commands = ("diagnose",)
    obtained_by = "ddoctor diagnose LOG"

    tables: tuple[PhaseTimes, ...]


class AllocatorTable(PrintedTable, frozen=True, kw_only=True):
    """What torch's allocator counted on one GPU, in bytes."""

    device: int
    """CUDA's index of the GPU."""
    failures: int
    """How often memory ran out."""
    retries: int
    """How often it returned unused memory to the driver, to try an allocation again."""
    most_allocated: int
    reserved: int
    """When the table was printed."""
    most_in_pieces: int = 0
    """The most that was unused in blocks of which another part was in use."""

    @property
    def gap(self) -> int:
        """Reserved bytes that even the peak did not use."""
        return self.reserved - self.most_allocated


class PrintedMemory(Section, frozen=True, kw_only=True):
    """The tables of ``torch.cuda.memory_summary()`` in a log."""

    commands = ("diagnose",)
    obtained_by = "print(torch.cuda.memory_summary()) in the script; ddoctor diagnose LOG"

    tables: tuple[AllocatorTable, ...]
