"""Tables about versions: known-bad combinations, and the driver that each CUDA needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

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

    table: ClassVar[str] = "combinations.toml"

    combinations: tuple[Combination, ...]


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

    table: ClassVar[str] = "cuda.toml"

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
    except InvalidVersion:
        return False
