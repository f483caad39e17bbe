"""Tables about software: known-bad versions, the driver of each CUDA, environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ddoctor.evidence.section import Known, Part
from ddoctor.evidence.software import Software


class Combination(Part, frozen=True, kw_only=True):
    """Versions that fail, alone or together."""

    versions: Mapping[str, str]
    """Version ranges by package; ``nccl`` is the library in use."""
    breaks: str
    """The failure, as a sentence without its full stop."""
    severity: Literal["note", "warning", "error"]
    confidence: Literal["possible", "likely"]
    upgrade: str
    """The command that fixes it."""
    source: str

    def installed(self, software: Software) -> Mapping[str, str] | None:
        """The installed versions if all of them are within the ranges; None: they are not."""
        found: dict[str, str] = {}
        for package, versions in self.versions.items():
            version = software.version(package)
            if version is None or not within(version, versions):
                return None
            found[package] = version
        return found


class Combinations(Known, frozen=True, kw_only=True):
    """Known-bad versions."""

    table = "combinations.toml"

    combinations: tuple[Combination, ...]
    packages: tuple[str, ...]
    """The packages whose versions a collector reads."""


class CudaMajor(Part, frozen=True, kw_only=True):
    """A major release of CUDA."""

    major: int
    minimum_driver: str
    """The oldest driver that runs all its releases (minor version compatibility)."""
    source: str


class CudaBuild(Part, frozen=True, kw_only=True):
    """One of PyTorch's official builds."""

    tag: str
    """The last part of its package index, say cu126."""
    cuda: tuple[int, int]
    capabilities: tuple[tuple[int, int], tuple[int, int]]
    """The lowest and the highest compute capability that it supports."""
    torch: str = ""
    """The last release with this build; empty: still built."""
    source: str


class CudaBuilds(Known, frozen=True, kw_only=True):
    """The driver that each CUDA needs, and the builds of torch, preferred first."""

    table = "cuda.toml"

    majors: tuple[CudaMajor, ...]
    builds: tuple[CudaBuild, ...]

    def minimum_driver(self, major: int) -> CudaMajor | None:
        """The row of a major release of CUDA."""
        return next((row for row in self.majors if row.major == major), None)

    def newest_major(self, driver: str) -> int | None:
        """The newest CUDA major release that this driver runs."""
        return max(
            (row.major for row in self.majors if within(driver, f">={row.minimum_driver}")),
            default=None,
        )

    def build_for(self, major: int, capability: tuple[int, int] | None) -> CudaBuild | None:
        """A build of torch for a driver of this CUDA major release and for this GPU."""
        for build in self.builds:
            low, high = build.capabilities
            if build.cuda[0] <= major and (capability is None or low <= capability <= high):
                return build
        return None


def within(version: str, versions: str) -> bool:
    """Whether a version is in a range such as ``>=2.4,<2.6``; False for an invalid version."""
    try:
        return SpecifierSet(versions).contains(Version(version), prereleases=True)
    except ValueError:
        # InvalidVersion, or a number of thousands of digits, which Python refuses to read.
        return False


Kind = Literal[
    "text",
    "integer",
    "torch-integer",
    "torch-boolean",
    "accelerate-boolean",
    "counts",
    "choice",
    "exact",
    "list",
    "per-function-list",
    "input-file",
    "output-file",
]
"""How the reader parses the value. integer: C's strtoll, which reads any word as 0. choice: one of
``values``, in any case; exact: case-sensitive. list: several of them, separated by commas; a
leading ``^`` excludes. per-function-list: such lists by function, as NCCL_ALGO. counts: positive
integers separated by commas."""


class VariableSource(Part, frozen=True, kw_only=True):
    """The origin of rows, and the program that reads their variables."""

    reader: str
    text: str
    newest: str = ""
    """The reader's newest release that the rows cover; empty: not relevant."""


class KnownVariable(Part, frozen=True, kw_only=True):
    """One variable that some program reads."""

    name: str
    kind: Kind = "text"
    values: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    otherwise: Literal["", "ignored", "fails"] = ""
    """What the reader does with any other value."""
    since: str = ""
    """The reader's first release with it; empty: not known, or older than the table."""
    removed: str = ""
    """The reader's first release without it."""
    now: str = ""
    """Its new name."""
    source: str
    """A key of the table's ``sources``."""


class Foreign(Part, frozen=True, kw_only=True):
    """A prefix that another program uses within a family of names."""

    prefix: str
    owner: str
    source: str


class Setting(Part, frozen=True, kw_only=True):
    """A variable with values that should not stay set."""

    name: str
    values: tuple[str, ...]
    effect: str
    """Its effect and cost, as the end of a sentence that begins with the setting."""
    severity: Literal["note", "warning"]
    only_with: Mapping[str, tuple[str, ...]] = {}
    """The effect depends on these variables having one of these values."""
    source: str


class Stopgap(Setting, frozen=True, kw_only=True):
    """A setting that disables a feature, and the evidence that the feature would work here."""

    path: Literal["p2p", "shm", "nvls", "rdma", "gdr", "gpu"]
    unless: str = ""
    """A prefix of variables whose owner requires this setting."""


class Contradiction(Part, frozen=True, kw_only=True):
    """Settings that contradict each other; ``*`` matches any value."""

    settings: Mapping[str, tuple[str, ...]]
    effect: str
    unset: str
    severity: Literal["note", "warning", "error"]
    source: str


class Bounds(Part, frozen=True, kw_only=True):
    """Two numbers, the first of which must not exceed the second."""

    lower: str
    upper: str
    source: str


class KnownVariables(Known, frozen=True, kw_only=True, dict=True):
    """Every known variable, and known problems with some of their values."""

    table = "variables.toml"

    families: tuple[str, ...]
    """Prefixes whose names are all in the table."""
    collected: tuple[str, ...]
    """The names that a collector reads; a prefix ends in ``_``."""
    sources: Mapping[str, VariableSource]
    variables: tuple[KnownVariable, ...]
    foreign: tuple[Foreign, ...]
    stopgaps: tuple[Stopgap, ...]
    debugging: tuple[Setting, ...]
    contradictions: tuple[Contradiction, ...]
    bounds: tuple[Bounds, ...]

    @cached_property
    def by_name(self) -> Mapping[str, KnownVariable]:
        """The rows of ``variables`` by name."""
        return {variable.name: variable for variable in self.variables}

    def collects(self, name: str) -> bool:
        """Whether a variable is kept: others may hold secrets."""
        families = tuple(one for one in self.collected if one.endswith("_"))
        # NCCL's own name in another case is a slip.
        return name in self.collected or name.startswith(families) or name.upper()[:5] == "NCCL_"

    def reader(self, variable: KnownVariable) -> str:
        """The program that reads a variable."""
        return self.sources[variable.source].reader
