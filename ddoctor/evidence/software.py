"""The installed software: Python, torch and what it was built with, NCCL libraries, packages."""

from __future__ import annotations

from ddoctor.evidence.section import Part, Section


class Torch(Part, frozen=True, kw_only=True):
    """What torch says of itself."""

    version: str
    path: str = ""
    """Its folder."""
    cuda: str | None = None
    """The CUDA that it was built with, say 12.8; None: built without."""
    hip: str | None = None
    """The ROCm that it was built with; None: built without."""
    nccl: str | None = None
    """The NCCL that it was built with, say 2.27.5."""
    cudnn: str | None = None
    """The cuDNN that it found."""
    architectures: tuple[str, ...] = ()
    """The GPU architectures that it has code for, say sm_90 and compute_90 (PTX)."""
    nccl_library: str | None = None
    """The NCCL library that importing torch loaded; None: it loads none or has its own inside."""


class NcclLibrary(Part, frozen=True, kw_only=True):
    """An NCCL library that a program might load."""

    path: str
    found: tuple[str, ...]
    """What leads to it: torch, nvidia-nccl, LD_PRELOAD, LD_LIBRARY_PATH, ldconfig."""
    version: str | None = None
    """As its own text says, say 2.27.3; None: it says nothing."""
    cuda: str | None = None
    """The CUDA that it was built for, say 12.9."""


class Package(Part, frozen=True, kw_only=True):
    """An installed distribution."""

    name: str
    version: str


class Software(Section, frozen=True, kw_only=True):
    """What a program started with this Python would run on."""

    python: str
    torch: Torch | None = None
    torch_error: str = ""
    """Why there is no torch: the last line of what importing it said."""
    nccl_libraries: tuple[NcclLibrary, ...] = ()
    packages: tuple[Package, ...] = ()
    """Of a list of packages that matter here, those that are installed."""

    @property
    def loaded_nccl(self) -> NcclLibrary | None:
        """The NCCL library that importing torch loaded."""
        path = self.torch.nccl_library if self.torch is not None else None
        return next((library for library in self.nccl_libraries if library.path == path), None)

    @property
    def nccl_version(self) -> str | None:
        """The NCCL that a run here would use: the one loaded, or else the one built in."""
        loaded = self.loaded_nccl
        built_in = self.torch.nccl if self.torch is not None else None
        return loaded.version if loaded is not None and loaded.version else built_in

    def version(self, package: str) -> str | None:
        """The version of a package, of torch, of the NCCL in use (``nccl``), or None."""
        if package == "nccl":
            return self.nccl_version
        if package == "torch":
            return self.torch.version if self.torch is not None else None
        return next((one.version for one in self.packages if one.name == package), None)
