"""An environment variable is misspelt, outdated or contradictory, or has an invalid value.

NCCL, torch and Accelerate silently ignore unknown names, so a misspelt setting looks set and does
nothing. NCCL reads any word as 0 where it expects a number: NCCL_IB_DISABLE=true disables nothing,
and NCCL_BUFFSIZE=8M makes buffers of 8 bytes. torch and Accelerate raise an error instead.

ddoctor knows all names of NCCL from 2.3 to 2.32, and those of torch 2.13, Accelerate 1.15 and
OpenMP, each with its source. Any other name may belong to a plug-in, so it is only a note, unless
it resembles a known name.

To see the settings that NCCL really uses, run with ``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV``. To
fix it, correct the name or the value, or unset the variable.
"""

# Above 150 lines: it judges names, values, files, contradictions and CUDA_VISIBLE_DEVICES.

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.environment_fixes import rewrite, unset
from ddoctor.analysis.parsing import whole
from ddoctor.analysis.variable_values import c_integer, holds, intended_name, misread
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.known_software import KnownVariable, KnownVariables, within
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.secret_forms import HIDDEN
from ddoctor.evidence.software import Environment, Software, Variable
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# torch/cuda/__init__.py, _parse_visible_devices, and the CUDA C++ Programming Guide: only the
# devices before the first invalid entry are visible, and a repeated one leaves none.
VISIBLE = "CUDA_VISIBLE_DEVICES"


def unknown_names(environment: Environment, known: KnownVariables) -> Iterator[Finding]:
    for variable in environment.variables:
        name = variable.name
        foreign = name.startswith(tuple(one.prefix for one in known.foreign))
        if name in known.by_name or foreign or HIDDEN in variable.value:
            continue
        meant = intended_name(known, name)
        if meant is not None and environment.get(meant) is None:
            yield _finding(
                Severity.WARNING,
                Confidence.LIKELY,
                f"no library reads {_set(variable)}; did you mean {meant}?",
                variable,
                expected=meant,
                source=known.sources[known.by_name[meant].source].text,
                fix=rewrite(environment, name, meant, variable.value),
            )
        elif name.startswith(known.families):
            yield _finding(
                Severity.NOTE,
                Confidence.POSSIBLE,
                f"{_set(variable)} is not a variable of NCCL 2.32, torch 2.13, Accelerate 1.15 or "
                "OpenMP; check the documentation of plug-ins and newer releases",
                variable,
            )


def unknown_names_in_a_launch(launch: Launch, known: KnownVariables) -> Iterator[Finding]:
    """A variable that the line, or a file of the launch, sets for the ranks."""
    for one in launch.settings:
        name = one.name.removeprefix("env.")
        if not one.name.startswith("env.") or name in known.by_name or not one.at:
            continue
        foreign = name.startswith(tuple(other.prefix for other in known.foreign))
        meant = intended_name(known, name)
        if foreign or not (name.startswith(known.families) or meant is not None):
            continue
        if meant is None or launch.get(f"env.{meant}") is None:
            question = f"; did you mean {meant}?" if meant is not None else ""
            yield Finding(
                severity=Severity.WARNING if meant is not None else Severity.NOTE,
                confidence=Confidence.LIKELY if meant is not None else Confidence.POSSIBLE,
                because=f"no library that ddoctor knows reads {name} ({one.at}){question}",
                evidence=(
                    Observation(name=name, value=one.value, expected=meant or "", source=one.at),
                ),
                fixes=(
                    Fix(summary="correct the name", paste=f"export {meant}={one.value}")
                    if meant is not None
                    else Fix(
                        summary="see which variables NCCL reads",
                        paste="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV …",
                    ),
                ),
            )
            return


def outdated_names(
    environment: Environment, known: KnownVariables, software: Software | None
) -> Iterator[Finding]:
    installed = {"NCCL": software.version("nccl") if software is not None else None}
    for variable, row in _rows(environment, known):
        reader, version = known.reader(row), installed.get(known.reader(row))
        severity, confidence = Severity.NOTE, Confidence.CERTAIN
        fix = unset(environment, variable.name)
        if row.now and environment.get(row.now) is None:
            fix = rewrite(environment, variable.name, row.now, variable.value)
        if row.removed and (version is None or within(version, f">={row.removed}")):
            severity = Severity.WARNING
            confidence = Confidence.LIKELY if version is None else Confidence.CERTAIN
            because = (
                f"{reader} {version or row.removed} does not read {_set(variable)}: {row.removed} "
                "removed it" + (f", and {row.now} replaces it" if row.now else "")
            )
        elif row.now and not row.removed:
            because = f"{reader} still reads {_set(variable)}, but its name is {row.now} now"
        elif row.since and version is not None and within(version, f"<{row.since}"):
            fix = unset(environment, variable.name)
            because = (
                f"{reader} {version} does not read {_set(variable)}, which is new in {row.since}"
            )
        else:
            continue
        source = known.sources[row.source].text
        yield _finding(severity, confidence, because, variable, source=source, fix=fix)


def misread_values(
    environment: Environment, known: KnownVariables, software: Software | None
) -> Iterator[Finding]:
    nccl = software.version("nccl") if software is not None else None
    for variable, row in _rows(environment, known):
        reader, newest = known.reader(row), known.sources[row.source].newest
        wrong = misread(row, variable.value, reader)
        if wrong is not None:
            severity = Severity.ERROR if wrong.fatal else Severity.WARNING
            newer = bool(newest and nccl and within(nccl, f">{newest}"))
            yield _finding(
                Severity.NOTE if newer else severity,
                Confidence.POSSIBLE if newer else Confidence.CERTAIN,
                f"{_set(variable)}: {wrong.happens}"
                + (f"; this holds up to {newest}, and {nccl} is installed" if newer else ""),
                variable,
                expected=wrong.intended or "",
                source=known.sources[row.source].text,
                fix=(
                    rewrite(environment, row.name, row.name, wrong.intended)
                    if wrong.intended is not None
                    else unset(environment, row.name)
                ),
            )


def missing_files(environment: Environment, known: KnownVariables) -> Iterator[Finding]:
    for variable, row in _rows(environment, known):
        reads = row.kind == "input-file" and variable.missing
        if reads or (row.kind == "output-file" and variable.missing == "folder"):
            what = f"{variable.value} does not exist" if reads else "its folder does not exist"
            yield _finding(
                Severity.WARNING,
                Confidence.CERTAIN,
                f"{_set(variable)}, and {what}",
                variable,
                source=known.sources[row.source].text,
                fix=unset(environment, row.name),
            )


def contradictions(environment: Environment, known: KnownVariables) -> Iterator[Finding]:
    given = {one.name: one for one in environment.variables}
    for row in known.contradictions:
        if all(
            holds(known, name, environment.get(name), row.settings[name]) for name in row.settings
        ):
            yield _finding(
                Severity(row.severity),
                Confidence.LIKELY,
                row.effect,
                *(given[name] for name in row.settings),
                source=known.sources[row.source].text,
                fix=unset(environment, row.unset),
            )
    for bounds in known.bounds:
        lower, upper = given.get(bounds.lower), given.get(bounds.upper)
        if lower and upper and c_integer(lower.value)[0] > c_integer(upper.value)[0] > 0:
            yield _finding(
                Severity.WARNING,
                Confidence.CERTAIN,
                "the minimum is above the maximum",
                lower,
                upper,
                source=known.sources[bounds.source].text,
                fix=unset(environment, bounds.lower),
            )


def invisible_devices(environment: Environment, gpus: Gpus) -> Iterator[Finding]:
    value = environment.get(VISIBLE)
    if not value or not gpus.gpus or any(gpu.mig for gpu in gpus.gpus):
        return
    entries = [whole(entry.strip()) for entry in value.split(",")]
    indices = [entry for entry in entries if entry is not None]
    if len(indices) < len(entries):
        return
    count = len(gpus.gpus)
    every = ",".join(map(str, range(count)))
    absent = next((index for index in indices if index >= count), None)
    repeated = next((index for index in indices if indices.count(index) > 1), None)
    if repeated is not None:
        visible, why = 0, f"{repeated} appears twice, which hides all GPUs"
    elif absent is not None:
        visible = indices.index(absent)
        why = f"GPU {absent} does not exist among the {count} here, which hides it and all after it"
    else:
        return
    yield Finding(
        severity=Severity.WARNING if visible else Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=f"{VISIBLE}={value} leaves {visible} of {count} GPUs visible: {why}",
        evidence=(
            Observation(
                name=VISIBLE,
                value=value,
                expected=f"some of {every}",
                source="CUDA C++ Programming Guide, CUDA Environment Variables",
            ),
        ),
        fixes=(rewrite(environment, VISIBLE, VISIBLE, every),),
    )


def _rows(
    environment: Environment, known: KnownVariables
) -> Iterator[tuple[Variable, KnownVariable]]:
    for variable in environment.variables:
        if variable.name in known.by_name and HIDDEN not in variable.value:
            yield variable, known.by_name[variable.name]


def _finding(
    severity: Severity,
    confidence: Confidence,
    because: str,
    *variables: Variable,
    expected: str = "",
    source: str = "",
    fix: Fix | None = None,
) -> Finding:
    """A finding about one variable, which ``because`` names, or about several of them."""
    if len(variables) > 1:
        because = f"{' and '.join(f'{one.name}={one.value}' for one in variables)}: {because}"
    return Finding(
        severity=severity,
        confidence=confidence,
        because=because,
        evidence=tuple(
            Observation(name=one.name, value=one.value, expected=expected or None, source=source)
            for one in variables
        ),
        fixes=(fix,) if fix is not None else (),
    )


def _set(variable: Variable) -> str:
    where = f" (set in {variable.origin})" if variable.origin else ""
    return f"{variable.name}={variable.value}{where}"
