from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Kernel, Limit, Limits
from ddoctor.evidence.network import Network, Rdma, ResolvedName
from ddoctor.evidence.secret_forms import HIDDEN
from ddoctor.evidence.section import Section
from ddoctor.evidence.software import Environment, Job, Package, Software, Variable
from ddoctor.models import Confidence, Finding, Severity
from tests.conftest import Findings
from tests.healthy import healthy

CAUSE = "environment-drift"
HOSTS = ("node-1", "node-2", "node-3", "node-4")
KINDS = (Software, Environment, Limits, Kernel, Gpus, Job, Network, Rdma)

Change = Callable[[Section], Section]
Drifted = Callable[..., tuple[Finding, ...]]


def replaced(section: Section, **fields: Any) -> Section:
    return msgspec.structs.replace(section, **fields)


def host(name: str, *changes: Change) -> list[Section]:
    """The healthy host under another name, with some sections changed."""
    sections = [replaced(one, host=name) for one in healthy() if isinstance(one, KINDS)]
    for change in changes:
        sections = [change(one) for one in sections]
    return sections


def variables(**values: str) -> Change:
    """Set these environment variables; an empty value takes one away."""

    def change(section: Section) -> Section:
        if not isinstance(section, Environment):
            return section
        kept = [one for one in section.variables if one.name not in values]
        new = [Variable(name=name, value=value) for name, value in values.items() if value]
        return replaced(section, variables=(*kept, *new))

    return change


def having(kind: type[Section], **fields: Any) -> Change:
    return lambda one: replaced(one, **fields) if isinstance(one, kind) else one


def torch(version: str) -> Change:
    def change(section: Section) -> Section:
        if not isinstance(section, Software) or section.torch is None:
            return section
        return replaced(section, torch=msgspec.structs.replace(section.torch, version=version))

    return change


@pytest.fixture
def drifted(findings: Findings) -> Drifted:
    """The findings on four equal hosts, after changes to some of them."""

    def run(hosts: tuple[str, ...] = HOSTS, **changed: tuple[Change, ...]) -> tuple[Finding, ...]:
        named = {name.replace("_", "-"): changes for name, changes in changed.items()}
        sections = [one for name in hosts for one in host(name, *named.get(name, ()))]
        return findings(CAUSE, *sections)

    return run


def rows(finding: Finding) -> dict[str, tuple[object, object]]:
    return {row.name: (row.value, row.expected) for row in finding.evidence}


def test_exactly_what_differs_on_one_of_four_hosts(drifted: Drifted) -> None:
    (finding,) = drifted(
        node_3=(
            torch("2.7.1+cu126"),
            variables(OMP_NUM_THREADS="1"),
            having(Job, arguments=("--config", "train.yaml", "--lr", "1e-3")),
        )
    )
    assert rows(finding) == {
        "torch": ("2.7.1+cu126", "2.8.0+cu128"),
        "OMP_NUM_THREADS": ("1", "12"),
        "arguments": ("--config train.yaml --lr 1e-3", "--config train.yaml --lr 3e-4"),
    }
    assert {row.source for row in finding.evidence} == {"3 of 4 hosts"}
    assert finding.where.hosts == ("node-3",)
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    lines, arguments = finding.fixes
    assert lines.paste == "pip install torch==2.8.0\nexport OMP_NUM_THREADS=12"
    assert arguments.paste == "--config train.yaml --lr 3e-4"


def test_hosts_that_differ_in_the_same_way_are_one_finding(drifted: Drifted) -> None:
    change = (variables(NCCL_ALGO="Ring"),)
    (finding,) = drifted(("node-0", *HOSTS), node_2=change, node_4=change)
    assert finding.where.hosts == ("node-2", "node-4")
    assert rows(finding) == {"NCCL_ALGO": ("Ring", "not set")}
    assert finding.fixes[0].paste == "unset NCCL_ALGO"


def test_hosts_that_differ_in_their_own_ways_are_several(drifted: Drifted) -> None:
    found = drifted(node_2=(variables(NCCL_ALGO="Ring"),), node_4=(torch("2.9.0+cu128"),))
    assert sorted(one.where.hosts for one in found) == [("node-2",), ("node-4",)]


def test_a_variable_that_is_missing_on_one_host(drifted: Drifted) -> None:
    (finding,) = drifted(node_1=(variables(OMP_NUM_THREADS=""),))
    assert rows(finding) == {"OMP_NUM_THREADS": ("not set", "12")}


def test_two_hosts_have_no_majority(drifted: Drifted) -> None:
    (finding,) = drifted(HOSTS[:2], node_2=(torch("2.7.1"),))
    assert rows(finding) == {"torch": ("2.8.0+cu128 on node-1; 2.7.1 on node-2", None)}
    assert finding.confidence is Confidence.LIKELY
    assert finding.where.hosts == ("node-1", "node-2")
    assert finding.fixes == ()


def test_other_code(drifted: Drifted) -> None:
    other = "0" * 40
    (finding,) = drifted(node_2=(having(Job, commit=other),))
    ((name, (value, expected)),) = rows(finding).items()
    assert (name, value) == ("code commit", other)
    assert finding.fixes[0].paste == f"git checkout {expected}"
    assert finding.severity is Severity.WARNING


def test_limits_kernel_and_driver(drifted: Drifted) -> None:
    (finding,) = drifted(
        node_2=(
            having(Limits, open_files=Limit(soft=1024, hard=4096)),
            having(Kernel, command_line="iommu=on"),
            having(Gpus, driver="535.183.01"),
        )
    )
    assert rows(finding) == {
        "open files": ("1024", "65536"),
        "kernel parameters": ("iommu=on", "iommu=pt"),
        "driver": ("535.183.01", "570.86.15"),
    }
    assert finding.fixes[0].paste == "ulimit -n 65536"


def test_fewer_gpus(drifted: Drifted) -> None:
    seven = next(one for one in healthy() if isinstance(one, Gpus)).gpus[:7]
    (finding,) = drifted(node_2=(having(Gpus, gpus=seven, peers=None),))
    assert rows(finding) == {"number of GPUs": ("7", "8")}


def test_torch_that_cannot_be_imported(drifted: Drifted) -> None:
    (finding,) = drifted(node_2=(having(Software, torch=None, torch_error="no"),))
    assert rows(finding) == {"torch": ("cannot be imported", "2.8.0+cu128")}


@pytest.mark.parametrize(
    "change",
    [
        having(
            Software,
            packages=(
                Package(name="accelerate", version="1.10.0"),
                Package(name="transformers", version="4.56.1"),
            ),
        ),
        having(Kernel, release="6.8.0-62-generic"),
        having(Gpus, driver="570.124.06"),
        variables(NCCL_SOCKET_IFNAME="ens5"),
        variables(NCCL_DEBUG="INFO"),
        variables(HF_HOME="/elsewhere"),
    ],
)
def test_what_fixes_only_mistakes_or_changes_no_result_is_a_note(
    drifted: Drifted, change: Change
) -> None:
    (finding,) = drifted(node_2=(change,))
    assert finding.severity is Severity.NOTE
    assert len(finding.evidence) == 1


def test_a_package_of_another_line_is_a_warning(drifted: Drifted) -> None:
    packages = (
        Package(name="accelerate", version="1.4.0"),
        Package(name="transformers", version="4.56.1"),
    )
    (finding,) = drifted(node_2=(having(Software, packages=packages),))
    assert finding.severity is Severity.WARNING
    assert finding.fixes[0].paste == "pip install accelerate==1.10.1"


def firmware(version: str, count: int = 8) -> Change:
    def change(section: Section) -> Section:
        if not isinstance(section, Rdma):
            return section
        devices = tuple(
            msgspec.structs.replace(one, board="MT_0000000838", firmware=version)
            for one in section.devices[:count]
        )
        return replaced(section, devices=devices)

    return change


def test_another_firmware_is_a_note(drifted: Drifted) -> None:
    usual = (firmware("28.39.1002"),)
    (finding,) = drifted(node_1=usual, node_2=(firmware("28.43.2026"),), node_3=usual, node_4=usual)
    assert rows(finding) == {"firmware of MT_0000000838": ("28.43.2026", "28.39.1002")}
    assert finding.severity is Severity.NOTE


def test_quiet_about_the_number_of_adapters(drifted: Drifted) -> None:
    fewer = (firmware("28.39.1002", count=4),)
    usual = (firmware("28.39.1002"),)
    assert drifted(node_1=usual, node_2=fewer, node_3=usual, node_4=()) == ()


def test_quiet_on_one_host(drifted: Drifted) -> None:
    assert drifted(HOSTS[:1]) == ()


def test_quiet_on_four_equal_hosts(drifted: Drifted) -> None:
    assert drifted() == ()


def place(rank: int, name: str) -> tuple[Change, ...]:
    """Variables that launchers set to another value on each host."""
    return (
        variables(
            RANK=str(8 * rank),
            LOCAL_RANK="0",
            GROUP_RANK=str(rank),
            NODE_RANK=str(rank),
            SLURM_PROCID=str(rank),
            SLURM_NODEID=str(rank),
            SLURM_CPUS_ON_NODE=str(96 + rank),
            OMPI_COMM_WORLD_RANK=str(rank),
            TORCHELASTIC_ERROR_FILE=f"/tmp/torchelastic_{rank}/error.json",
            MASTER_ADDR="localhost" if rank == 0 else "node-1",
            MASTER_PORT=str(29500 + rank),
            CUDA_VISIBLE_DEVICES=f"{rank},{rank + 4}",
            TMPDIR=f"/tmp/job.{rank}",
            HF_HOME=f"/scratch/{name}/hf",
            NCCL_DEBUG_FILE=f"/logs/{name}.cluster.txt",
            NCCL_COMM_ID="node-1:4321",
        ),
        having(
            Network,
            own_name=ResolvedName(name=name, addresses=(f"10.0.0.{rank}",)),
            announced_name=f"{name}.cluster",
        ),
        having(
            Job,
            arguments=(
                "--node-rank",
                str(rank),
                f"--local_rank={rank}",
                *(("--json", "report.json") if rank == 0 else ()),
                "--endpoint=node-1:29500",
                "--output",
                f"/out/{name}/log",
            ),
        ),
    )


@pytest.mark.parametrize("count", [2, 3, 4])
def test_quiet_where_hosts_differ_as_they_must(drifted: Drifted, count: int) -> None:
    changed = {name.replace("-", "_"): place(rank, name) for rank, name in enumerate(HOSTS)}
    assert drifted(HOSTS[:count], **changed) == ()


def test_quiet_about_values_that_each_host_has_its_own_of(drifted: Drifted) -> None:
    changed = {
        name.replace("-", "_"): (variables(NCCL_TOPO_FILE=f"/run/{rank * 7919}.xml"),)
        for rank, name in enumerate(HOSTS)
    }
    assert drifted(**changed) == ()


def test_quiet_about_the_number_of_processes(drifted: Drifted) -> None:
    limit = Limit(soft=8254000, hard=8254000)
    assert drifted(node_2=(having(Limits, processes=limit),)) == ()


def test_quiet_about_nccl_which_is_a_cause_of_its_own(drifted: Drifted, findings: Findings) -> None:
    def older(section: Section) -> Section:
        if not isinstance(section, Software) or section.torch is None:
            return section
        return replaced(
            section,
            torch=msgspec.structs.replace(section.torch, nccl="2.26.2", nccl_library=None),
            packages=tuple(
                msgspec.structs.replace(one, version="2.26.2") if "nccl" in one.name else one
                for one in section.packages
            ),
        )

    assert drifted(node_2=(older,)) == ()
    assert findings("nccl-library-mismatch", *host("node-1"), *host("node-2", older))


@pytest.mark.parametrize("kind", [Job, Gpus, Limits, Kernel, Environment, Network, Rdma])
def test_quiet_about_what_one_host_could_not_see(findings: Findings, kind: type[Section]) -> None:
    blind = [one for one in host("node-2") if not isinstance(one, kind)]
    rest = [one for name in ("node-1", "node-3", "node-4") for one in host(name)]
    assert findings(CAUSE, *blind, *rest) == ()


def test_quiet_where_nothing_was_launched_or_checked_out(drifted: Drifted) -> None:
    assert drifted(node_2=(having(Job, arguments=None, commit=None),)) == ()


def test_quiet_where_locked_memory_has_no_limit_at_all(drifted: Drifted) -> None:
    free = having(Limits, locks_without_limit=True, locked_memory=Limit(soft=65536, hard=65536))
    assert drifted(node_2=(free,)) == ()


def test_no_fix_passes_on_a_hidden_value(drifted: Drifted) -> None:
    hidden = (variables(FSDP_NOTE=HIDDEN),)
    found = drifted(node_1=hidden, node_2=hidden, node_3=hidden)
    (finding,) = found
    assert finding.where.hosts == ("node-4",)
    assert finding.fixes == ()
