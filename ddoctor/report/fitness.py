"""Which hosts are fit for a run, which are not and why, and how to leave those out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ddoctor import engine
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.section import Evidence
from ddoctor.models import Confidence, Fix, Report, Severity, Verdict
from ddoctor.report import wording

BESIDE = {"clock_skew", "interfaces", "storage_read"}
"""Probes that tell little of the machine: they run even where the GPUs are somebody else's."""

SPECIAL = re.compile(r"[][().*+?{}|^$\\]")
"""What `grep -E` reads as more than itself."""


@dataclass(frozen=True, kw_only=True)
class Fitness:
    """The hosts of a report, parted."""

    fit: tuple[str, ...]
    unfit: Mapping[str, tuple[str, ...]]
    """The causes of each unfit host."""

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each line: the fit hosts, then the unfit ones by cause."""
        causes: dict[tuple[str, ...], list[str]] = {}
        for host, why in self.unfit.items():
            causes.setdefault(why, []).append(host)
        return (
            ("fit", wording.listed(self.fit)),
            *(
                ("unfit", f"{wording.listed(hosts)}: {', '.join(why)}")
                for why, hosts in causes.items()
            ),
        )

    def exclusions(self) -> tuple[Fix, ...]:
        """How to leave the unfit hosts out, for each kind of launcher."""
        names = tuple(self.unfit)
        listed = "|".join(SPECIAL.sub(r"\\\g<0>", name) for name in names)
        pattern = shlex.quote(rf"^({listed})(\s|$)")
        values = "".join(f"\n              - {_scalar(name)}" for name in names)
        return (
            Fix(
                summary="leave the unfit out under Slurm",
                paste=f"srun --exclude={shlex.quote(','.join(names))}",
            ),
            Fix(
                summary="leave them out of a hostfile (OpenMPI, DeepSpeed)",
                paste=f"grep -vE {pattern} hostfile > hostfile.fit",
            ),
            Fix(
                summary="keep pods off them on Kubernetes, in the pod's template",
                paste="affinity:\n"
                "  nodeAffinity:\n"
                "    requiredDuringSchedulingIgnoredDuringExecution:\n"
                "      nodeSelectorTerms:\n"
                "        - matchExpressions:\n"
                "            - key: kubernetes.io/hostname\n"
                "              operator: NotIn\n"
                f"              values:{values}",
                language="yaml",
                caution="a pod's host name is not its node's: `kubectl get pods -o wide` tells "
                "the node",
            ),
        )


def fit(report: Report) -> Fitness | None:
    """The hosts that findings about the machine itself speak of, and the others.

    None: there is one host only, none is unfit, or none is fit.
    """
    unfit = _unfit(report)
    others = tuple(host for host in report.world.hosts if host not in unfit)
    return Fitness(fit=others, unfit=unfit) if unfit and others else None


def lists(report: Report, evidence: Evidence) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fit hosts and the unfit ones; nobody is called fit of whom nothing was measured."""
    unfit = _unfit(report)
    measured = any(
        run.outcome == "completed" and run.probe not in BESIDE
        for section in evidence.all(ProbeRuns)
        for run in section.runs
    )
    if report.verdict is Verdict.INCOMPLETE or not measured:
        return (), tuple(unfit)
    return tuple(host for host in report.world.hosts if host not in unfit), tuple(unfit)


def _unfit(report: Report) -> Mapping[str, tuple[str, ...]]:
    causes: dict[str, list[str]] = {}
    for finding in report.findings:
        if (
            finding.severity > Severity.NOTE
            and finding.confidence > Confidence.POSSIBLE
            and engine.of_machine(finding.cause)
        ):
            for host in finding.where.hosts:
                causes.setdefault(host, []).append(finding.cause)
    return {host: tuple(dict.fromkeys(causes[host])) for host in sorted(causes)}


def _scalar(name: str) -> str:
    """A name as YAML: quoted where it might be read as something else."""
    return name if re.fullmatch(r"[A-Za-z][\w.-]*", name) else "'" + name.replace("'", "''") + "'"
