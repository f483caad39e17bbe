"""The installed software, the environment variables that control a run, and what was launched."""

from __future__ import annotations

from typing import Literal

from ddoctor.evidence.section import Part, Section


class Torch(Part, frozen=True, kw_only=True):
    """Properties of the installed torch, and of the libraries that it was built with."""

    version: str
    path: str = ""
    """Its installation folder."""
    cuda: str | None = None
    """The CUDA version of its build, say 12.8; None: built without; empty: not known."""
    hip: str | None = None
    """The ROCm version of its build; None: built without."""
    nccl: str | None = None
    """The NCCL version of its build, say 2.27.5."""
    cudnn: str | None = None
    """The cuDNN version that it found."""
    architectures: tuple[str, ...] = ()
    """The GPU architectures of its build, say sm_90 and compute_90 (PTX)."""
    nccl_library: str | None = None
    """The NCCL library that ``import torch`` loads; None: none, or statically linked."""


class NcclLibrary(Part, frozen=True, kw_only=True):
    """An NCCL library that a program might load."""

    path: str
    found: tuple[str, ...]
    """How a program finds it: torch, nvidia-nccl, LD_PRELOAD, LD_LIBRARY_PATH, ldconfig."""
    version: str | None = None
    """The version string inside it, say 2.27.3; None: it has none."""
    cuda: str | None = None
    """The CUDA version of its build, say 12.9."""


class Package(Part, frozen=True, kw_only=True):
    """An installed distribution."""

    name: str
    version: str


class Software(Section, frozen=True, kw_only=True):
    """The software that a program started with this Python would use."""

    commands = ("doctor", "probe", "diagnose")

    python: str = ""
    """Version of Python; empty: not known."""
    torch: Torch | None = None
    torch_error: str = ""
    """Why torch is missing: the last line of the import error."""
    nccl_libraries: tuple[NcclLibrary, ...] = ()
    packages: tuple[Package, ...] = ()
    """The installed ones of a list of relevant packages."""

    @property
    def loaded_nccl(self) -> NcclLibrary | None:
        """The NCCL library that ``import torch`` loads."""
        path = self.torch.nccl_library if self.torch is not None else None
        return next((library for library in self.nccl_libraries if library.path == path), None)

    @property
    def nccl_version(self) -> str | None:
        """The NCCL version that a run here would use: the loaded one, or else the built-in one."""
        loaded = self.loaded_nccl
        built_in = self.torch.nccl if self.torch is not None else None
        return loaded.version if loaded is not None and loaded.version else built_in

    def version(self, package: str) -> str | None:
        """The version of a package, of torch, or of the NCCL in use (``nccl``); None: none."""
        if package == "nccl":
            return self.nccl_version
        if package == "torch":
            return self.torch.version if self.torch is not None else None
        return next((one.version for one in self.packages if one.name == package), None)


class Variable(Part, frozen=True, kw_only=True):
    """One variable as a process started here would see it."""

    name: str
    value: str
    origin: str = ""
    """The file that sets it (NCCL reads its own configuration files); empty: the environment."""
    missing: Literal["", "file", "folder"] = ""
    """For a path: whether the file is missing, or even its folder; empty: neither."""


ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The variables of torch's allocator. The newer name comes first, as in torch since 2.9."""
EXPANDS = "expandable_segments:True"
"""The words in their value with which segments grow."""


class Environment(Section, frozen=True, kw_only=True):
    """The allow-listed variables that are set, each once, sorted by name."""

    commands = ("doctor", "probe", "run", "diagnose")

    variables: tuple[Variable, ...] = ()

    def get(self, name: str) -> str | None:
        """The value in force; None if the variable is not set."""
        return next((one.value for one in self.variables if one.name == name), None)

    def any_with(self, prefix: str) -> bool:
        """Whether any variable with this prefix is set."""
        return any(one.name.startswith(prefix) for one in self.variables)

    def origin(self, name: str) -> str:
        """The file that sets a variable; empty: the environment, or it is not set."""
        return next((one.origin for one in self.variables if one.name == name), "")


class Job(Section, frozen=True, kw_only=True):
    """The arguments of a launched program and the commit of its working folder."""

    arguments: tuple[str, ...] | None = None
    """Arguments with possible secrets hidden; None: no program was launched."""
    commit: str | None = None
    """Commit checked out in the working folder or a parent; None: no repository."""
