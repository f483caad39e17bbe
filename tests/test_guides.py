"""The guides name existing options and probes, and valid manifests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ddoctor.commands.plan import PlanOptions
from ddoctor.commands.run import StartOptions
from ddoctor.forecast import request
from ddoctor.options import BEFORE_A_COMMAND, parse, words
from ddoctor.probing import catalog
from ddoctor.probing.options import ProbeOptions
from ddoctor.report.plan import table
from ddoctor.training.options import RunOptions
from ddoctor.training.rank import RankOptions
from ddoctor.training.rewrite import rewritten

README = Path(__file__).parents[1] / "README.md"
WITHOUT_PROBES = ("figures", "attach", "diagnose", "doctor", "plan", "whole-run")
GUIDES = sorted((Path(__file__).parents[1] / "docs/guides").glob("*.md"))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_every_command_of_the_probes_is_understood(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"-m ddoctor\.probe([^\n`]*)", text)
    assert commands or guide.stem in (
        "figures",
        "attach",
        "diagnose",
        "doctor",
        "plan",
        "whole-run",
    )
    for command in commands:
        given = shlex.split(command)
        if given[:1] == ["run"]:
            recorded = parse(RankOptions, given[1:], "run", settings=BEFORE_A_COMMAND)
            assert recorded is not None
            assert recorded.script or not given[1:]
            continue
        chosen = parse(ProbeOptions, given, "probe")
        assert chosen is not None
        assert set(chosen.probes or ()) <= set(catalog.names())


def test_every_plan_is_understood() -> None:
    text = (README.parent / "docs/guides/plan.md").read_text(encoding="utf-8")
    commands = re.findall(r"^ddoctor plan ([^\n]*)", text.replace("\\\n", " "), re.MULTILINE)
    assert commands
    for command in commands:
        assert parse(PlanOptions, shlex.split(command), "plan") is not None


def test_the_table_of_zero_is_what_a_plan_shows() -> None:
    text = (README.parent / "docs/guides/plan.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ddoctor plan (.* --engine deepspeed .*)$", text, re.MULTILINE)
    options = parse(PlanOptions, shlex.split(command), "plan")
    assert options is not None
    grid = table(request.plan(options), narrow=True)
    tables = re.findall(r"^```\n(  strategy .*?)```$", text, re.DOTALL | re.MULTILINE)
    (shown,) = (one for one in tables if "ZeRO" in one)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines == [" ".join(row).strip() for row in (grid.head, *grid.rows)]


@pytest.mark.parametrize("page", [*GUIDES, README], ids=lambda path: path.stem)
def test_every_launch_command_can_be_rewritten(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"ddoctor run ([^\n`#]*-- [^\n`#]+)", text)
    assert commands or page.stem not in ("run", "README")
    for command in commands:
        chosen = parse(StartOptions, shlex.split(command), "run", settings=BEFORE_A_COMMAND)
        assert chosen is not None
        ours = words(RunOptions, chosen)
        assert "ddoctor.probe" in rewritten(chosen.command or (), ours).words


def manifest() -> list[Any]:
    """The documents of the manifest for Kubernetes."""
    guide = next(path for path in GUIDES if path.stem == "kubernetes")
    (text,) = re.findall(r"```yaml\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    return list(yaml.safe_load_all(text))


def test_kubernetes_accepts_the_manifest() -> None:
    service, job = manifest()
    for document in (service, job):
        kubernetes_validate.validate(document, "1.29", strict=True)
    job["spec"]["completion"] = job["spec"].pop("completions")
    with pytest.raises(kubernetes_validate.ValidationError, match="completion"):
        kubernetes_validate.validate(job, "1.29", strict=True)


def test_the_manifest_is_one() -> None:
    service, job = manifest()
    name = service["metadata"]["name"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["subdomain"] == name
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert f"--master-addr {job['metadata']['name']}-0.{name} " in container["command"][-1]
    assert f"--nnodes {job['spec']['completions']} " in container["command"][-1]
    assert job["spec"]["parallelism"] == job["spec"]["completions"]
