from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from ddoctor import check_catalog, discovery, engine
from ddoctor.analysis.derived import Derived
from ddoctor.errors import DoctorError
from ddoctor.evidence.host import Clock, Memory, SharedMemory
from ddoctor.evidence.probes import Matmul, ProbeRun, ProbeRuns
from ddoctor.evidence.section import Absence, Absent, Evidence, Section
from ddoctor.models import (
    Confidence,
    Finding,
    Report,
    Result,
    Severity,
    Verdict,
    Where,
    World,
)


def a_finding(where: Where | None = None, severity: Severity = Severity.WARNING) -> Finding:
    return Finding(
        severity=severity,
        confidence=Confidence.CERTAIN,
        because="of the test",
        where=where or Where(),
    )


def module(**functions: object) -> ModuleType:
    made = ModuleType("ddoctor.checks.made_up")
    made.__doc__ = "A cause that is made up.\n\nFor the test."
    for name, function in functions.items():
        function.__module__ = made.__name__
        setattr(made, name, function)
    return made


def on_each(shared_memory: SharedMemory) -> Iterator[Finding]:
    yield a_finding()


def on_all(clocks: tuple[Clock, ...]) -> Iterator[Finding]:
    yield a_finding(where=Where(hosts=tuple(clock.host for clock in clocks)))


def without(shared_memory: SharedMemory, memory: Memory | None) -> Iterator[Finding]:
    if memory is None:
        yield a_finding()


def crashes(shared_memory: SharedMemory) -> Iterator[Finding]:
    yield a_finding()
    raise ZeroDivisionError("of no use")


def run(function: object, *sections: Section) -> list[Result]:
    check = check_catalog.read(module(**{"way": function}))
    return list(engine.diagnose(Evidence(sections), [check]))


def shm(host: str) -> SharedMemory:
    return SharedMemory(host=host, size=1, free=1)


def test_a_check_runs_once_per_host_and_the_finding_names_it() -> None:
    results = run(on_each, shm("a"), shm("b"))
    assert [f.where.hosts for r in results for f in r.findings] == [("a",), ("b",)]
    assert [f.cause for r in results for f in r.findings] == ["made-up"] * 2
    assert [f.title for r in results for f in r.findings] == ["A cause that is made up"] * 2


def test_a_check_of_all_hosts_runs_once() -> None:
    (result,) = run(
        on_all, Clock(host="b", synchronised=True), Clock(host="a", synchronised=True), shm("c")
    )
    assert [finding.where.hosts for finding in result.findings] == [("a", "b")]


def test_a_section_of_the_whole_world_serves_every_host() -> None:
    results = run(on_each, shm(""), Memory(host="a", total=1, available=1))
    assert [f.where.hosts for r in results for f in r.findings] == [("a",)]


def test_a_check_of_the_whole_world_runs_once_for_all_hosts() -> None:
    (result,) = run(on_each, shm(""), *(Clock(host=h, synchronised=True) for h in "ab"))
    assert [finding.where.hosts for finding in result.findings] == [("a", "b")]


def test_optional_evidence_is_given_where_it_is() -> None:
    assert [len(r.findings) for r in run(without, shm("a"))] == [1]
    memory = Memory(host="a", total=1, available=1)
    assert [len(r.findings) for r in run(without, shm("a"), memory)] == [0]


def test_what_explains_a_cause_is_said_on_either_side() -> None:
    one, other, third = module(way=on_each), module(way=on_each), module(way=on_each)
    one.EXPLAINS = ("b",)  # type: ignore[attr-defined]
    other.EXPLAINED_BY = ("a", "c")  # type: ignore[attr-defined]
    checks = [
        check_catalog.read(made, name) for made, name in ((one, "a"), (other, "b"), (third, "c"))
    ]
    assert check_catalog.explains(checks) == {"a": {"b"}, "b": set(), "c": {"b"}}


def test_missing_evidence_is_a_reason_and_no_silence() -> None:
    (result,) = run(on_each)
    assert result.findings == ()
    assert "no shared-memory evidence: get it with `ddoctor doctor`" in str(result.skipped)


def test_the_collectors_own_reason_is_passed_on() -> None:
    absent = Absent(host="a", sections=(Absence(section="shared-memory", why="no /dev/shm here"),))
    (result,) = run(on_each, absent)
    assert result.skipped == "no shared-memory evidence: no /dev/shm here"


def test_a_check_of_all_hosts_passes_their_reasons_on() -> None:
    hosts = ("a", "b")
    absent = [Absent(host=h, sections=(Absence(section="clock", why="no kernel"),)) for h in hosts]
    (result,) = run(on_all, *absent)
    assert result.skipped == "no clock evidence: no kernel"


def measured(matmul: Matmul) -> Iterator[Finding]:
    yield a_finding()


def test_a_probe_that_did_not_complete_says_why() -> None:
    skipped = ProbeRun(probe="matmul", outcome="skipped", reason="the GPU is in use")
    (result,) = run(measured, ProbeRuns(host="a", runs=(skipped,)))
    assert result.skipped == "no matmul evidence: matmul was skipped: the GPU is in use"
    (result,) = run(measured, shm("a"))
    assert result.skipped == "no matmul evidence: get it with `ddoctor doctor --probe matmul`"


def test_a_host_without_the_evidence_is_named_among_several() -> None:
    results = run(on_each, shm("a"), Clock(host="b", synchronised=True))
    assert [bool(result.findings) for result in results] == [True, False]
    assert str(results[1].skipped).endswith("(on b)")


def test_a_reason_that_holds_everywhere_names_no_host() -> None:
    (result,) = run(on_each, *(Clock(host=h, synchronised=True) for h in "ab"))
    assert str(result.skipped).endswith("`ddoctor doctor`")


def test_a_crash_is_told_and_the_others_go_on() -> None:
    check = check_catalog.read(module(way=crashes, other=on_each))
    crashed, fine = engine.diagnose(Evidence([shm("a")]), [check])
    assert crashed.findings == ()
    assert crashed.crashed == (
        f"ZeroDivisionError: of no use (test_engine.py:{crashes.__code__.co_firstlineno + 2})"
    )
    assert fine.findings


def test_a_parameter_that_is_no_evidence_is_refused() -> None:
    def wrong(number: int) -> Iterator[Finding]:
        yield a_finding()

    with pytest.raises(TypeError, match="no type of evidence"):
        check_catalog.read(module(way=wrong))


def report(*findings: Finding, verdict: Verdict = Verdict.FINDINGS) -> Report:
    return Report(
        ddoctor="0",
        command="doctor",
        created="",
        verdict=verdict,
        world=World(),
        findings=findings,
        skipped=(),
        crashed=(),
    )


def test_exit_codes() -> None:
    assert report(a_finding(severity=Severity.NOTE), verdict=Verdict.HEALTHY).exit_code == 0
    assert report(a_finding()).exit_code == 1
    assert report(a_finding(), verdict=Verdict.INCOMPLETE).exit_code == 1
    assert report(verdict=Verdict.INCOMPLETE).exit_code == 2


def test_a_probe_that_hung_makes_the_examination_incomplete() -> None:
    runs = ProbeRuns(host="a", runs=(ProbeRun(probe="matmul", outcome="hung", reason="r"),))
    examined = engine.examine(Evidence([runs]), "diagnose")
    assert examined.verdict is Verdict.INCOMPLETE
    assert [crash.check for crash in examined.crashed] == ["probe matmul"]


def test_a_probe_that_was_skipped_does_not() -> None:
    runs = ProbeRuns(host="a", runs=(ProbeRun(probe="matmul", outcome="skipped", reason="r"),))
    assert engine.examine(Evidence([runs]), "diagnose").verdict is Verdict.HEALTHY


def test_a_bare_checkout_says_what_to_do() -> None:
    with pytest.raises(DoctorError, match="pip install -e"):
        discovery.own("ddoctor.no_such_package")


class Sizes(Derived):
    """Of all hosts; it counts how often it was made."""

    made = 0

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    @classmethod
    def derive(cls, clocks: tuple[Clock, ...], joint: SharedMemory | None) -> Sizes:
        cls.made += 1
        return cls(tuple(clock.host for clock in clocks))


def of_sizes(sizes: Sizes) -> Iterator[Finding]:
    yield a_finding(where=Where(hosts=sizes.names))


def of_sizes_and_host(sizes: Sizes, memory: Memory) -> Iterator[Finding]:
    yield a_finding()


CLOCKS = tuple(Clock(host=host, synchronised=True) for host in "ab")


def test_what_is_derived_is_made_once_for_all_ways_and_hosts() -> None:
    Sizes.made = 0
    memories = [Memory(host=host, total=1, available=1) for host in "ab"]
    check = check_catalog.read(
        module(first=of_sizes_and_host, second=of_sizes_and_host, third=on_all)
    )
    results = list(engine.diagnose(Evidence([*CLOCKS, *memories]), [check]))
    assert [f.where.hosts for r in results for f in r.findings] == [("a",), ("b",)] * 2 + [
        ("a", "b")
    ]
    assert Sizes.made == 1


def test_other_sections_are_derived_from_again() -> None:
    Sizes.made = 0
    (one,) = run(of_sizes, *CLOCKS)
    (other,) = run(of_sizes, *CLOCKS[:1])
    assert [f.where.hosts for r in (one, other) for f in r.findings] == [("a", "b"), ("a",)]
    assert Sizes.made == 2


def test_what_is_derived_needs_its_sections() -> None:
    (way,) = check_catalog.read(module(way=of_sizes_and_host)).ways
    assert [(need.section, need.every_host, need.optional) for need in way.needs.values()] == [
        (Clock, True, False),
        (SharedMemory, False, True),
        (Memory, False, False),
    ]
    Sizes.made = 0
    (result,) = run(of_sizes_and_host, Memory(host="a", total=1, available=1))
    assert result.skipped == "no clock evidence: get it with `ddoctor doctor`"
    assert Sizes.made == 0


class Broken(Derived):
    @classmethod
    def derive(cls, clocks: tuple[Clock, ...]) -> Broken:
        raise ZeroDivisionError("of no use")


def of_what_is_broken(broken: Broken) -> Iterator[Finding]:
    yield a_finding()


def test_what_cannot_be_derived_is_a_crash_of_the_check() -> None:
    (result,) = run(of_what_is_broken, *CLOCKS)
    assert str(result.crashed).startswith("ZeroDivisionError: of no use (test_engine.py:")
