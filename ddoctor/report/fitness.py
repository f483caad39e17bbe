"""Which hosts are fit for a run, which are unfit and why, and how to exclude those."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ddoctor import check_catalog
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.section import Evidence
from ddoctor.models import Confidence, Fix, Report, Severity, Verdict
from ddoctor.report import wording

BESIDE = {"clock_skew", "interfaces", "storage_read"}
"""Probes that say little about the machine: they run even on GPUs that other jobs use."""

SPECIAL = re.compile(r"[][().*+?{}|^$\\]")
"""The characters that `grep -E` does not take literally."""


@dataclass(frozen=True, kw_only=True)
class Fitness:
    """The fit and the unfit hosts of a report."""

    fit: tuple[str, ...]
    unfit: Mapping[str, tuple[str, ...]]
    """The causes of each unfit host."""

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Return label and text of each line: the fit hosts, then the unfit ones by cause."""
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
        """Return how to exclude the unfit hosts, for each kind of launcher."""
        names = tuple(self.unfit)
        listed = "|".join(SPECIAL.sub(r"\\\g<0>", name) for name in names)
        pattern = shlex.quote(rf"^({listed})(\s|$)")
        values = "".join(f"\n              - {_scalar(name)}" for name in names)
        return (
            Fix(
                summary="exclude the unfit hosts under Slurm",
                paste=f"srun --exclude={shlex.quote(','.join(names))}",
            ),
            Fix(
                summary="remove them from a hostfile (OpenMPI, DeepSpeed)",
                paste=f"grep -vE {pattern} hostfile > hostfile.fit",
            ),
            Fix(
                summary="keep pods off them on Kubernetes, in the pod template",
                paste="affinity:\n"
                "  nodeAffinity:\n"
                "    requiredDuringSchedulingIgnoredDuringExecution:\n"
                "      nodeSelectorTerms:\n"
                "        - matchExpressions:\n"
                "            - key: kubernetes.io/hostname\n"
                "              operator: NotIn\n"
                f"              values:{values}",
                language="yaml",
                caution="a pod's host name differs from its node's name: "
                "`kubectl get pods -o wide` shows the node",
            ),
        )


def fit(report: Report) -> Fitness | None:
    """Divide the hosts by whether a finding about the machine itself names them.

    Returns None if there is only one host, or none is unfit, or none is fit.
    """
    unfit = _unfit(report)
    others = tuple(host for host in report.world.hosts if host not in unfit)
    return Fitness(fit=others, unfit=unfit) if unfit and others else None


def lists(report: Report, evidence: Evidence) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fit and the unfit hosts; a host that was not measured is not called fit."""
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
            and check_catalog.of_machine(finding.cause)
        ):
            for host in finding.where.hosts:
                causes.setdefault(host, []).append(finding.cause)
    return {host: tuple(dict.fromkeys(causes[host])) for host in sorted(causes)}


def _scalar(name: str) -> str:
    """Return a name as YAML, quoted if YAML would read it as something else."""
    return name if re.fullmatch(r"[A-Za-z][\w.-]*", name) else "'" + name.replace("'", "''") + "'"
