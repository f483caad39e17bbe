"""torch loads another NCCL than it was built with, or nodes load different versions.

An older NCCL lacks functions that torch calls ("undefined symbol: ncclCommRegister"). An NCCL for a
newer CUDA than the driver supports fails with "unhandled cuda error". Nodes with different versions
refuse each other ("Mismatched NCCL version detected"). The wrong library comes from LD_LIBRARY_PATH
or LD_PRELOAD of a module system, from a system package, or from wheels for two CUDA releases in one
environment.

To see the version that a run really uses, set ``NCCL_DEBUG=VERSION``. To fix it, remove the other
library from the path, or reinstall torch.
"""

# Above 150 lines: it judges version, CUDA release, a failing import, double wheels and differing
# nodes.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.parsing import is_older, major
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.log import Log
from ddoctor.evidence.software import Environment, NcclLibrary, Software
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("cuda-driver-or-arch-mismatch", "dead-rank", "first-failure-masked", "script-error")

# A newer NCCL keeps the functions of older releases; an older one lacks newer functions
# (torch/cuda/nccl.py, NCCL's src/libnccl.map; https://github.com/pytorch/pytorch/issues/119932).
WHEELS = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
LOADER_PATHS = {"LD_PRELOAD", "LD_LIBRARY_PATH"}
REINSTALL = Fix(
    summary="reinstall torch with its own NCCL",
    paste="pip install --force-reinstall torch",
    caution="use the --index-url of your build",
)


def not_the_one_built_with(
    software: Software, environment: Environment | None
) -> Iterator[Finding]:
    library, torch = software.loaded_nccl, software.torch
    if library is None or library.version is None or torch is None or torch.nccl is None:
        return
    if library.version == torch.nccl:
        return
    older = is_older(library.version, torch.nccl)
    meaning = (
        "an older NCCL may lack functions that torch calls"
        if older
        else "NCCL supports this, but keep it in mind if a run fails"
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
            Observation(name="path of the library", value=library.path),
        ),
        fixes=(_without(library, environment),),
    )


def built_for_a_newer_cuda(software: Software, gpus: Gpus) -> Iterator[Finding]:
    library = software.loaded_nccl
    if library is None or library.cuda is None or gpus.cuda is None:
        return
    built_for = major(library.cuda)
    if built_for is None or built_for <= gpus.cuda[0]:
        return
    runs = ".".join(map(str, gpus.cuda))
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"{library.path} (NCCL {library.version}) was built for CUDA {library.cuda}, and "
            f"driver {gpus.driver} supports CUDA {runs} at most"
        ),
        evidence=(
            Observation(name="CUDA of the NCCL library", value=library.cuda, expected=f"<= {runs}"),
        ),
        fixes=(_without(library, None),),
    )


def import_fails_for_it(software: Software, environment: Environment | None) -> Iterator[Finding]:
    symbol = software.torch_error.partition("undefined symbol: nccl")[2].split()
    if not symbol:
        return
    outside = [one for one in software.nccl_libraries if LOADER_PATHS & set(one.found)]
    seen = "; ".join(f"{one.path} is {one.version or 'of unknown version'}" for one in outside)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"`import torch` fails because the loaded NCCL lacks nccl{symbol[0]}"
            + (f" ({seen})" if seen else "")
        ),
        evidence=(Observation(name="import torch", value=software.torch_error),),
        fixes=(*(_without(one, environment) for one in outside), REINSTALL),
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
            f"{named} are installed and both write nvidia/nccl/lib/libnccl.so.2, so torch loads "
            "whichever was installed last"
        ),
        evidence=tuple(Observation(name=name, value=version) for name, version in found.items()),
        fixes=(
            Fix(
                summary="uninstall all of them and reinstall torch with its own NCCL",
                paste=f"pip uninstall -y {' '.join(found)}\n{REINSTALL.paste}",
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
            f"differs on {named}; NCCL refuses ranks with another version"
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


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("nccl-symbol"):
        yield log_events.finding(
            [event],
            f"the NCCL that is loaded has no {event.values['symbol']}: torch "
            "was built with a newer one",
            Fix(
                summary="find the other NCCL, and leave its folder out",
                paste="python -c 'import torch; print(torch.cuda.nccl.version())'; "
                "ldconfig -p | grep nccl; pip list | grep -i nccl\nunset LD_LIBRARY_PATH",
            ),
            confidence=Confidence.CERTAIN,
        )

    if event := log.first("nccl-versions"):
        one, other = event.values["one"], event.values["other"]
        yield log_events.finding(
            [event],
            f"rank {one} has NCCL {event.values['its']}, rank {other} has {event.values['others']}",
            Fix(
                summary="install the same torch on all nodes, or one shared environment",
                paste="python -c 'import torch; print(torch.cuda.nccl.version())'; which python",
                caution="run it on each node, in the environment of the ranks",
            ),
            confidence=Confidence.CERTAIN,
        )


def _without(library: NcclLibrary, environment: Environment | None) -> Fix:
    """The fix: remove the library from the variable that leads to it; else reinstall torch."""
    folder = library.path.rpartition("/")[0]
    if "LD_PRELOAD" in library.found:
        return Fix(summary="unset LD_PRELOAD", paste="unset LD_PRELOAD")
    if "LD_LIBRARY_PATH" not in library.found:
        return REINSTALL
    given = environment.get("LD_LIBRARY_PATH") if environment is not None else None
    rest = ":".join(one for one in (given or "").split(":") if one and one.rstrip("/") != folder)
    return Fix(
        summary=f"remove {folder} from LD_LIBRARY_PATH",
        paste=f"export LD_LIBRARY_PATH={rest}" if rest else "unset LD_LIBRARY_PATH",
    )
