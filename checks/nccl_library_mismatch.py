"""Another NCCL is loaded than the one torch was built with, or nodes load different ones.

An older NCCL lacks functions that torch calls ("undefined symbol: ncclCommRegister"), one for a
newer CUDA than the driver runs fails with "unhandled cuda error", and nodes with different versions
refuse each other ("Mismatched NCCL version detected"). It comes from LD_LIBRARY_PATH or LD_PRELOAD
of a module system, from a system package, or from wheels for two releases of CUDA in one
environment.

Seen from outside: ``NCCL_DEBUG=VERSION`` prints the version that a run really uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from packaging.version import Version

from ddoctor.evidence.environment import Environment
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.software import NcclLibrary, Software
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("cuda-driver-or-arch-mismatch",)

# torch/cuda/nccl.py and NCCL's own text; NCCL keeps what older programs call, and cannot offer
# what newer ones do (NCCL's src/libnccl.map; https://github.com/pytorch/pytorch/issues/119932).
WHEELS = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")


def not_the_one_built_with(
    software: Software, environment: Environment | None
) -> Iterator[Finding]:
    library, torch = software.loaded_nccl, software.torch
    if library is None or library.version is None or torch is None or torch.nccl is None:
        return
    if library.version == torch.nccl:
        return
    older = Version(library.version) < Version(torch.nccl)
    meaning = (
        "an older NCCL may lack what torch calls"
        if older
        else "which NCCL allows, and which is worth knowing when a run fails"
    )
    yield Finding(
        severity=Severity.WARNING if older else Severity.NOTE,
        confidence=Confidence.CERTAIN,
        because=(
            f"torch {torch.version} was built with NCCL {torch.nccl} and loads {library.version} "
            f"from {library.path}: {meaning}"
        ),
        evidence=(
            Observation(name="NCCL loaded", value=library.version, expected=torch.nccl),
            Observation(name="its file", value=library.path),
        ),
        fixes=tuple(_without(library, environment)),
    )


def built_for_a_newer_cuda(software: Software, gpus: Gpus) -> Iterator[Finding]:
    library = software.loaded_nccl
    if library is None or library.cuda is None or gpus.cuda is None:
        return
    if int(library.cuda.partition(".")[0]) <= gpus.cuda[0]:
        return
    runs = ".".join(map(str, gpus.cuda))
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"{library.path} (NCCL {library.version}) was built for CUDA {library.cuda}, and "
            f"driver {gpus.driver} runs nothing newer than CUDA {runs}"
        ),
        evidence=(
            Observation(name="CUDA of the NCCL library", value=library.cuda, expected=f"<= {runs}"),
        ),
        fixes=tuple(_without(library, None)),
    )


def import_fails_for_it(software: Software, environment: Environment | None) -> Iterator[Finding]:
    symbol = software.torch_error.partition("undefined symbol: nccl")[2].split()
    if not symbol:
        return
    outside = [one for one in software.nccl_libraries if _from_loader_path(one)]
    seen = "; ".join(f"{one.path} is {one.version or 'of unknown version'}" for one in outside)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"torch cannot be imported, because the NCCL that is loaded lacks nccl{symbol[0]}"
            + (f" ({seen})" if seen else "")
        ),
        evidence=(Observation(name="import torch", value=software.torch_error),),
        fixes=(*(fix for one in outside for fix in _without(one, environment)), _reinstall()),
    )


def wheels_for_two_cudas(software: Software) -> Iterator[Finding]:
    wheels = {name: software.version(name) for name in WHEELS}
    found = {name: version for name, version in wheels.items() if version is not None}
    if len(found) < 2:
        return
    named = " and ".join(f"{name} {version}" for name, version in found.items())
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{named} are installed and both write nvidia/nccl/lib/libnccl.so.2, so the one that "
            "was installed last is what torch loads"
        ),
        evidence=tuple(Observation(name=name, value=version) for name, version in found.items()),
        fixes=(
            Fix(
                summary="take all of them out and let torch bring its own back",
                paste=f"pip uninstall -y {' '.join(found)}\n{_reinstall().paste}",
            ),
        ),
    )


def differs_between_nodes(every: tuple[Software, ...]) -> Iterator[Finding]:
    versions = {one.host: one.nccl_version for one in every if one.nccl_version is not None}
    if len(set(versions.values())) < 2:
        return
    common = Counter(versions.values()).most_common(1)[0][0]
    others = {host: version for host, version in versions.items() if version != common}
    named = ", ".join(f"{host} {version}" for host, version in sorted(others.items()))
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"NCCL is {common} on {len(versions) - len(others)} of {len(versions)} nodes and "
            f"differs on {named}; NCCL refuses ranks of another version"
        ),
        evidence=tuple(
            Observation(
                name=f"NCCL on {host}",
                value=version or "",
                expected=common,
                source="NCCL's src/init.cc: Mismatched NCCL version detected",
            )
            for host, version in sorted(others.items())
        ),
        where=Where(hosts=tuple(sorted(others))),
        fixes=(
            Fix(
                summary="install the same torch on all nodes, or one shared environment",
                paste="python -m pip install --force-reinstall torch",
            ),
        ),
    )


def _from_loader_path(library: NcclLibrary) -> bool:
    return bool({"LD_PRELOAD", "LD_LIBRARY_PATH"} & set(library.found))


def _without(library: NcclLibrary, environment: Environment | None) -> Iterator[Fix]:
    """Take the library out of the variable that leads to it; else let pip bring torch's own."""
    folder = library.path.rpartition("/")[0]
    if "LD_PRELOAD" in library.found:
        yield Fix(summary="do not preload it", paste="unset LD_PRELOAD")
    elif "LD_LIBRARY_PATH" in library.found:
        given = environment.get("LD_LIBRARY_PATH") if environment is not None else None
        kept = [one for one in (given or "").split(":") if one and one.rstrip("/") != folder]
        rest = ":".join(kept)
        yield Fix(
            summary=f"take {folder} out of the loader's path",
            paste=f"export LD_LIBRARY_PATH={rest}" if rest else "unset LD_LIBRARY_PATH",
        )
    else:
        yield _reinstall()


def _reinstall() -> Fix:
    return Fix(
        summary="install torch again with the NCCL that belongs to it",
        paste="pip install --force-reinstall torch",
        caution="keep the --index-url of the build that you use",
    )
