from __future__ import annotations

import subprocess
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Literal

import pytest
import yaml
from rich.console import Console

from ddoctor.errors import DoctorError
from ddoctor.evidence.probes import ProbeRun, ProbeRuns
from ddoctor.evidence.section import Evidence
from ddoctor.models import Confidence, Finding, Report, Severity, Verdict, Where
from ddoctor.probing.options import ProbeOptions
from ddoctor.report import html, markdown, terminal
from ddoctor.report.fitness import Fitness, fit, lists
from ddoctor.report.output import Outputs
from tests.report import sample

HOSTS = ("node-1", "node-2", "node-3", "node-10")


def finding(cause: str, *hosts: str, severity: Severity = Severity.WARNING) -> Finding:
    return Finding(
        cause=cause,
        title=cause,
        severity=severity,
        confidence=Confidence.LIKELY,
        because="because",
        where=Where(hosts=hosts),
    )


def parted(*findings: Finding, hosts: tuple[str, ...] = HOSTS) -> Fitness | None:
    return fit(sample.report(*findings, verdict=Verdict.FINDINGS, hosts=hosts))


def test_the_machine_s_own_causes_make_a_host_unfit() -> None:
    told = parted(
        finding("gpu-thermal-throttling", "node-3"),
        finding("straggler-rank", "node-3", "node-1"),
    )
    assert told is not None
    assert told.fit == ("node-2", "node-10")
    assert told.unfit == {
        "node-1": ("straggler-rank",),
        "node-3": ("gpu-thermal-throttling", "straggler-rank"),
    }
    assert told.lines() == (
        ("fit", "node-2, node-10"),
        ("unfit", "node-1: straggler-rank"),
        ("unfit", "node-3: gpu-thermal-throttling, straggler-rank"),
    )


def test_a_host_that_never_came_is_unfit() -> None:
    told = parted(finding("rank-missing-at-init", "node-9"))
    assert told is not None
    assert (told.fit, tuple(told.unfit)) == (HOSTS, ("node-9",))


@pytest.mark.parametrize(
    "findings",
    [
        (),
        (finding("environment-drift", "node-1"),),
        (finding("shm-too-small", "node-1", severity=Severity.ERROR),),
        (finding("gpu-thermal-throttling", "node-1", severity=Severity.NOTE),),
        (replace(finding("straggler-rank", "node-1"), confidence=Confidence.POSSIBLE),),
        (finding("straggler-rank"),),
        (finding("uneven-gpu-speed", *HOSTS),),
    ],
)
def test_nothing_to_part(findings: tuple[Finding, ...]) -> None:
    assert parted(*findings) is None


def test_nothing_to_part_on_one_host() -> None:
    assert parted(finding("gpu-hardware-fault", "node-1"), hosts=("node-1",)) is None


def test_lines_that_leave_hosts_out(tmp_path: Path) -> None:
    told = parted(finding("straggler-rank", "node-1", "node-3"))
    assert told is not None
    slurm, hostfile, kubernetes = told.exclusions()
    assert slurm.paste == "srun --exclude=node-1,node-3"
    listed = "node-1 slots=8\nnode-2 slots=8\nnode-3\nnode-10 slots=8\n"
    (tmp_path / "hostfile").write_text(listed)
    subprocess.run(["sh", "-c", hostfile.paste], cwd=tmp_path, check=True)
    assert (tmp_path / "hostfile.fit").read_text() == "node-2 slots=8\nnode-10 slots=8\n"
    terms = yaml.safe_load(kubernetes.paste)["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    (rule,) = terms[0]["matchExpressions"]
    assert (rule["operator"], rule["values"]) == ("NotIn", ["node-1", "node-3"])


def test_a_name_cannot_say_more_than_a_name(tmp_path: Path) -> None:
    evil = "a'$(touch broken)\": b"
    told = parted(finding("straggler-rank", evil))
    assert told is not None
    slurm, hostfile, kubernetes = told.exclusions()
    (tmp_path / "hostfile").write_text("node-1\n")
    done = subprocess.run(
        ["sh", "-c", f"{hostfile.paste}\n{slurm.paste.replace('srun', 'echo')}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"--exclude={evil}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hostfile", "hostfile.fit"]
    assert evil in str(yaml.safe_load(kubernetes.paste)).replace("\\'", "'")


def test_every_face_shows_it_where_there_is_something_to_part() -> None:
    for name, shown in (("two-hosts", True), ("sick", False), ("healthy", False)):
        report, evidence = sample.SAMPLES[name]()
        text = StringIO()
        terminal.render(report, evidence, Console(file=text, width=80))
        pages = (text.getvalue(), markdown.render(report, evidence), html.render(report, evidence))
        for page in pages:
            assert ("srun --exclude=node-1" in page) is shown, name


def judged(*findings: Finding, hosts: tuple[str, ...]) -> Report:
    verdict = Verdict.FINDINGS if findings else Verdict.HEALTHY
    return sample.report(*findings, verdict=verdict, hosts=hosts)


def ran(**outcomes: Literal["completed", "skipped"]) -> Evidence:
    runs = (ProbeRun(probe=probe, outcome=outcome) for probe, outcome in outcomes.items())
    return Evidence((ProbeRuns(runs=tuple(runs), world_size=3),))


def test_lists_for_those_that_start_runs(tmp_path: Path) -> None:
    report = judged(finding("straggler-rank", "b"), hosts=("a", "b", "c"))
    Outputs(hosts=tmp_path).write_files(report, ran(matmul="completed"))
    assert (tmp_path / "fit.txt").read_text() == "a\nc\n"
    assert (tmp_path / "unfit.txt").read_text() == "b\n"


def test_the_option_of_a_probe_writes_them(tmp_path: Path) -> None:
    assert ProbeOptions(hosts=tmp_path).outputs().hosts == tmp_path


def test_all_are_fit_where_nothing_is_wrong_and_nobody_where_all_are_unfit() -> None:
    hosts, measured = ("a", "b"), ran(matmul="completed")
    assert lists(judged(hosts=hosts), measured) == (hosts, ())
    everybody = judged(finding("straggler-rank", *hosts), hosts=hosts)
    assert lists(everybody, measured) == ((), hosts)


def test_nobody_is_fit_of_whom_not_everything_is_known() -> None:
    report = judged(finding("straggler-rank", "b"), hosts=("a", "b"))
    incomplete = replace(report, verdict=Verdict.INCOMPLETE)
    assert lists(incomplete, ran(matmul="completed")) == ((), ("b",))
    for nothing in (
        ran(matmul="skipped", storage_read="completed"),
        Evidence((ProbeRuns(runs=(), world_size=2),)),
        Evidence(()),
    ):
        assert lists(report, nothing) == ((), ("b",))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="there is no folder"):
        Outputs(hosts=tmp_path / "missing")
