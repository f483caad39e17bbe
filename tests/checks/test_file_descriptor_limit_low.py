from __future__ import annotations

import pytest

from ddoctor.evidence.host import Kernel, Limit, Limits
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "file-descriptor-limit-low"


def limits(soft: int | None, hard: int | None = 524288) -> Limits:
    other = Limit(soft=None, hard=None)
    files = Limit(soft=soft, hard=hard)
    return Limits(host="a", open_files=files, locked_memory=other, processes=other)


@pytest.mark.parametrize("soft", [64, 100])
def test_an_error_where_workers_cannot_start(findings: Findings, soft: int) -> None:
    (finding,) = findings(CAUSE, limits(soft))
    assert finding.severity is Severity.ERROR
    assert f" {soft} files" in finding.because


@pytest.mark.parametrize("soft", [256, 1023])
def test_a_warning_below_the_usual_limit(findings: Findings, soft: int) -> None:
    (finding,) = findings(CAUSE, limits(soft))
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("hard", "container", "paste"),
    [
        (524288, "", "ulimit -n 65536"),
        (None, "", "ulimit -n 65536"),
        (4096, "", "ulimit -n 4096"),
        (4096, "docker", "ulimit -n 4096"),
    ],
)
def test_raises_the_soft_limit_as_far_as_the_hard_one_allows(
    findings: Findings, hard: int | None, container: str, paste: str
) -> None:
    kernel = Kernel(host="a", release="6.8", container=container)
    (finding,) = findings(CAUSE, limits(64, hard), kernel)
    assert [fix.paste for fix in finding.fixes] == [paste]


@pytest.mark.parametrize(("container", "words"), [("docker", "--ulimit nofile"), ("", "limits.d")])
def test_a_low_hard_limit_is_raised_where_it_is_set(
    findings: Findings, container: str, words: str
) -> None:
    kernel = Kernel(host="a", release="6.8", container=container)
    (finding,) = findings(CAUSE, limits(64, 64), kernel)
    assert words in finding.fixes[0].paste


@pytest.mark.parametrize("soft", [1024, 20000, 65536, 1048576, None])
def test_quiet_at_and_above_the_usual_limit(findings: Findings, soft: int | None) -> None:
    assert findings(CAUSE, limits(soft)) == ()
