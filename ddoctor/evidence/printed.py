"""What commands of a machine printed, beyond what ddoctor's own collectors and probes see."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.probes import RankPlace, common_device, on_one_host
from ddoctor.evidence.section import Part, Section


class PrintedOutput(Part, frozen=True, kw_only=True):
    """The output of one command in a file."""

    command: str
    """The command, say ``nvidia-smi -q``."""
    file: str
    line: int
    """Number of its first line, from 1."""
    host: str = ""
    """Empty: the file names none."""


class PrintedOutputs(Section, frozen=True, kw_only=True):
    """The outputs of commands that were found in the files of a run."""

    commands = ("diagnose",)
    obtained_by = "ddoctor diagnose FILE"

    outputs: tuple[PrintedOutput, ...]


class ListedProcess(Part, frozen=True, kw_only=True):
    """A process in a list of those that use GPUs."""

    gpu: int
    pid: int
    name: str
    memory: int
    """Bytes of the GPU."""


class GpuProcesses(Section, frozen=True, kw_only=True):
    """The processes of ``nvidia-smi``, without its table of GPUs."""

    commands = ("diagnose",)
    obtained_by = "ddoctor diagnose FILE"

    processes: tuple[ListedProcess, ...]


class NcclTestPoint(Part, frozen=True, kw_only=True):
    """One message size of a test."""

    bytes: int
    """Message size."""
    bus_bandwidth: float
    """GB/s (1e9 bytes), the better of out-of-place and in-place."""
    wrong: int | None = None
    """Values beyond the tolerance of nccl-tests; None: not checked."""


class NcclTest(Part, frozen=True, kw_only=True):
    """One program of nccl-tests."""

    collective: str
    """Say all_reduce; empty: the output does not name it."""
    ranks: tuple[RankPlace, ...] = ()
    points: tuple[NcclTestPoint, ...]

    # As of the all-reduce probe; nccl-tests says neither.
    algorithm: ClassVar[str | None] = None
    transport: ClassVar[str | None] = None

    @property
    def device_name(self) -> str | None:
        """The model of all GPUs; None: several models, or not known."""
        return common_device(self.ranks)

    @property
    def within_node(self) -> bool:
        """Whether all ranks run on one host."""
        return on_one_host(self.ranks)


class NcclTests(Section, frozen=True, kw_only=True):
    """The tables that the programs of nccl-tests print (all_reduce_perf, …)."""

    commands = ("diagnose",)
    obtained_by = "ddoctor diagnose OUTPUT"

    tests: tuple[NcclTest, ...]


class PairBandwidth(Part, frozen=True, kw_only=True):
    """Copies from one GPU to another, in GB/s (1e9 bytes)."""

    a: int
    """CUDA's index of the GPU that is read."""
    b: int
    through_host: float
    """Without peer access."""
    direct: float
    """With peer access; where there is none, about the same."""


class PeerBandwidth(Section, frozen=True, kw_only=True):
    """The tables of one direction of CUDA's sample p2pBandwidthLatencyTest."""

    commands = ("diagnose",)
    obtained_by = "ddoctor diagnose OUTPUT"

    pairs: tuple[PairBandwidth, ...]


class DiagnosticFailure(Part, frozen=True, kw_only=True):
    """A test of DCGM that a GPU did not pass."""

    test: str
    gpu: int | None = None
    """DCGM's number of the GPU; None: the failure is not of one GPU."""
    text: str = ""
    """DCGM's own words."""


class GpuDiagnostic(Section, frozen=True, kw_only=True):
    """The result of ``dcgmi diag``, as a table or as JSON."""

    commands = ("diagnose",)
    obtained_by = "dcgmi diag -r 3 > diag.txt; ddoctor diagnose diag.txt"

    failures: tuple[DiagnosticFailure, ...] = ()


class LinkErrors(Part, frozen=True, kw_only=True):
    """The error counters of one NVLink of a GPU, since the driver was loaded or reset them."""

    gpu: int
    """Index in nvidia-smi, or DCGM's number."""
    link: int
    recoveries: int = 0
    """Times that the link had to be trained again; of NVLink 5, those that failed."""
    repaired: int = 0
    """Replays and CRC errors, after which the link sent the data once more."""

    @property
    def name(self) -> str:
        """The link in a sentence."""
        return f"link {self.link} of GPU {self.gpu}"


class NvLinkErrors(Section, frozen=True, kw_only=True):
    """The counters of ``nvidia-smi nvlink -e`` or ``dcgmi nvlink -e``."""

    commands = ("diagnose",)
    obtained_by = "nvidia-smi nvlink -e > nvlink.txt; ddoctor diagnose nvlink.txt"

    links: tuple[LinkErrors, ...]
