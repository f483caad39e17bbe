from __future__ import annotations

import pytest

from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Environment, Variable
from ddoctor.evidence.source_facts import SourceSetting
from ddoctor.evidence.source_lines import SourceLine, Within
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_steps import COUNT, USUAL, steps

CAUSE = "debug-settings-left-on"


def environment(**values: str) -> Environment:
    return Environment(
        host="a",
        variables=tuple(Variable(name=name, value=value) for name, value in values.items()),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail"),
        ("ACCELERATE_DEBUG_MODE", "true"),
    ],
)
def test_what_costs_time_at_each_step_is_a_warning(
    findings: Findings, name: str, value: str
) -> None:
    (finding,) = findings(CAUSE, environment(**{name: value}))
    assert finding.severity is Severity.WARNING
    assert "measure its cost" in finding.because
    assert finding.fixes[0].paste == f"unset {name}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_DEBUG", "trace"),
        ("TORCH_CPP_LOG_LEVEL", "0"),
        ("TORCH_NCCL_NAN_CHECK", "1"),
        ("NCCL_CHECK_POINTERS", "1"),
        ("TORCH_COMPILE_DISABLE", "1"),
    ],
)
def test_what_costs_little_is_a_note(findings: Findings, name: str, value: str) -> None:
    (finding,) = findings(CAUSE, environment(**{name: value}))
    assert finding.severity is Severity.NOTE


def test_a_line_for_every_collective_is_a_warning(findings: Findings) -> None:
    section = environment(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,COLL")
    severities = {
        finding.evidence[0].name: finding.severity for finding in findings(CAUSE, section)
    }
    assert severities == {"NCCL_DEBUG": Severity.NOTE, "NCCL_DEBUG_SUBSYS": Severity.WARNING}


@pytest.mark.parametrize(
    "values",
    [
        {"NCCL_DEBUG": "WARN"},
        {"NCCL_DEBUG": "VERSION"},
        {"NCCL_DEBUG_SUBSYS": "ALL"},
        {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"},
        {"TORCH_DISTRIBUTED_DEBUG": "OFF"},
        {"TORCH_DISTRIBUTED_DEBUG": "INFO"},
        {"TORCH_CPP_LOG_LEVEL": "WARNING"},
        {"TORCH_NCCL_NAN_CHECK": "0"},
        {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
        {"ACCELERATE_DEBUG_MODE": "false"},
        {"OMP_NUM_THREADS": "8"},
    ],
)
def test_quiet_about_what_belongs_in_production(findings: Findings, values: dict[str, str]) -> None:
    assert findings(CAUSE, environment(**values)) == ()


def flags(*profiled: int) -> RankUse:
    rows = (RankFlags(rank=rank, profiled=count) for rank, count in enumerate(profiled))
    return RankUse(hosts=(), flags=tuple(rows))


@pytest.mark.parametrize("each", [COUNT, COUNT // 2])
def test_a_profiler_that_records_most_steps(findings: Findings, each: int) -> None:
    (finding,) = findings(CAUSE, flags(each, each), steps(USUAL, USUAL))
    assert finding.severity is Severity.WARNING
    assert "on all ranks" in finding.because
    assert finding.where.ranks == ()


def test_a_profiler_on_one_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, flags(COUNT, 0), steps(USUAL, USUAL))
    assert finding.where.ranks == (0,)


@pytest.mark.parametrize("each", [0, 3])
def test_a_profiler_of_a_few_steps_is_none(findings: Findings, each: int) -> None:
    assert findings(CAUSE, flags(each, each), steps(USUAL, USUAL)) == ()


def test_of_few_steps_nothing_is_said(findings: Findings) -> None:
    assert findings(CAUSE, flags(4, 4), steps(USUAL, USUAL, count=4)) == ()


def source(name: str, value: str, *within: Within) -> Script:
    at = SourceLine(file="train.py", line=8, text=f'os.environ["{name}"] = {value}', function="")
    setting = SourceSetting(name=f"os.environ[{name}]", value=value, at=at, within=within)
    return Script(files=("train.py",), settings=(setting,))


DETAIL = ("TORCH_DISTRIBUTED_DEBUG", '"DETAIL"')


def test_a_variable_that_the_script_sets(findings: Findings) -> None:
    (finding,) = findings(CAUSE, source(*DETAIL))
    assert finding.severity is Severity.WARNING
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL (train.py:8 (`os.environ" in finding.because
    assert finding.fixes[0].paste == "TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun …"


@pytest.mark.parametrize(
    "script",
    [
        source(*DETAIL, "condition"),
        source("TORCH_DISTRIBUTED_DEBUG", '"OFF"'),
        source("TORCH_DISTRIBUTED_DEBUG", "args.debug"),
        source("NCCL_DEBUG", '"INFO"'),
    ],
)
def test_quiet_about_the_script(findings: Findings, script: Script) -> None:
    assert findings(CAUSE, script) == ()


def test_told_once_where_the_environment_has_it(findings: Findings) -> None:
    there = environment(TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert len(findings(CAUSE, source(*DETAIL), there)) == 1
