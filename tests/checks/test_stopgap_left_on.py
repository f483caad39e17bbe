from __future__ import annotations

from itertools import combinations

import pytest

from ddoctor.evidence.gpus import Gpu, Gpus, NvLink, PeerPath
from ddoctor.evidence.host import SharedMemory
from ddoctor.evidence.network import Rdma, RdmaDevice, RdmaPort
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Environment, Variable
from ddoctor.evidence.source_facts import SourceSetting
from ddoctor.evidence.source_lines import SourceLine, Within
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "stopgap-left-on"
GIB = 2**30


def environment(**values: str) -> Environment:
    return Environment(
        host="a",
        variables=tuple(Variable(name=name, value=value) for name, value in values.items()),
    )


def gpus(count: int, *, read: str = "ok", nvswitch: bool = False) -> Gpus:
    return Gpus(
        host="a",
        driver="570.86.15",
        gpus=tuple(
            Gpu(
                index=index,
                name="NVIDIA H100",
                capability=(9, 0),
                memory_total=80 * GIB,
                memory_used=0,
                nvlinks=(NvLink(index=0, active=True, remote="switch"),) if nvswitch else (),
                fabric_state="completed" if nvswitch else "not_supported",
            )
            for index in range(count)
        ),
        peers=tuple(
            PeerPath(a=a, b=b, path="nvlink", read=read) for a, b in combinations(range(count), 2)
        ),
    )


def rdma(state: str = "ACTIVE", peer_memory: str | None = None) -> Rdma:
    port = RdmaPort(number=1, state=state, link_layer="InfiniBand")
    device = RdmaDevice(name="mlx5_0", ports=(port,))
    return Rdma(host="a", devices=(device,), peer_memory=peer_memory)


SHARED_MEMORY = SharedMemory(host="a", size=64 * GIB, free=64 * GIB)


@pytest.mark.parametrize(
    ("name", "value", "section", "words"),
    [
        ("NCCL_P2P_DISABLE", "1", gpus(2), "peer-to-peer works between all 2 GPUs"),
        ("NCCL_P2P_DISABLE", "01", gpus(8), "peer-to-peer works between all 8 GPUs"),
        ("NCCL_P2P_LEVEL", "LOC", gpus(2), "peer-to-peer works between all 2 GPUs"),
        ("NCCL_NVLS_ENABLE", "0", gpus(8, nvswitch=True), "NVSwitch"),
        ("NCCL_IB_DISABLE", "1", rdma(), "active port on mlx5_0"),
        ("NCCL_NET", "socket", rdma(), "active port on mlx5_0"),
        ("NCCL_NET_GDR_LEVEL", "LOC", rdma(peer_memory="nvidia_peermem"), "nvidia_peermem"),
        ("CUDA_LAUNCH_BLOCKING", "1", gpus(1), "overlaps"),
        ("TORCH_NCCL_BLOCKING_WAIT", "true", gpus(2), "holds the CPU up"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", gpus(1), "cudaMalloc"),
    ],
)
def test_fires_where_the_path_works(
    findings: Findings, name: str, value: str, section: Gpus | Rdma, words: str
) -> None:
    (finding,) = findings(CAUSE, environment(**{name: value}), section)
    assert finding.severity is Severity.WARNING
    assert words in finding.because
    assert finding.fixes[0].paste == f"unset {name}"


def test_fires_for_shared_memory_between_gpus_without_peer_to_peer(findings: Findings) -> None:
    section = environment(NCCL_SHM_DISABLE="1")
    pair = gpus(2, read="chipset_not_supported")
    (finding,) = findings(CAUSE, section, pair, SHARED_MEMORY)
    assert "64 GiB of /dev/shm" in finding.because


def test_a_setting_of_the_administrator_is_mended_in_the_file(findings: Findings) -> None:
    variable = Variable(name="NCCL_P2P_DISABLE", value="1", origin="/etc/nccl.conf")
    (finding,) = findings(CAUSE, Environment(host="a", variables=(variable,)), gpus(2))
    assert finding.fixes[0].paste == "sed -i '/^NCCL_P2P_DISABLE=/d' /etc/nccl.conf"
    assert "administrator" in finding.fixes[0].caution


@pytest.mark.parametrize(
    ("name", "value", "section"),
    [
        # consumer cards: Accelerate itself sets these two for them
        ("NCCL_P2P_DISABLE", "1", gpus(2, read="chipset_not_supported")),
        ("NCCL_IB_DISABLE", "1", gpus(2)),
        ("NCCL_P2P_DISABLE", "0", gpus(2)),
        ("NCCL_P2P_DISABLE", "1", gpus(1)),
        ("NCCL_P2P_DISABLE", "true", gpus(2)),  # which NCCL reads as 0
        ("NCCL_P2P_LEVEL", "NVL", gpus(8)),
        ("NCCL_IB_DISABLE", "1", rdma("DOWN")),
        ("NCCL_IB_DISABLE", "0", rdma()),
        ("NCCL_NET", "IB", rdma()),
        ("NCCL_NET_GDR_LEVEL", "LOC", rdma()),
        ("NCCL_NET_GDR_LEVEL", "PHB", rdma(peer_memory="nvidia_peermem")),
        ("NCCL_NVLS_ENABLE", "0", gpus(8)),
        ("NCCL_NVLS_ENABLE", "2", gpus(8, nvswitch=True)),
        ("NCCL_SHM_DISABLE", "1", gpus(8)),
        ("CUDA_LAUNCH_BLOCKING", "0", gpus(8)),
        ("TORCH_NCCL_BLOCKING_WAIT", "false", gpus(8)),
    ],
)
def test_quiet_where_the_path_would_not_be_taken(
    findings: Findings, name: str, value: str, section: Gpus | Rdma
) -> None:
    assert findings(CAUSE, environment(**{name: value}), section, SHARED_MEMORY) == ()


def test_quiet_where_nothing_tells_whether_it_works(findings: Findings) -> None:
    everything = {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1", "CUDA_LAUNCH_BLOCKING": "1"}
    assert findings(CAUSE, environment(**everything)) == ()


def test_quiet_where_the_network_plug_in_asks_for_it(findings: Findings) -> None:
    section = environment(NCCL_NVLS_ENABLE="0", NCCL_FASTRAK_CTRL_DEV="eth0")
    assert findings(CAUSE, section, gpus(8, nvswitch=True)) == ()


def source(name: str, value: str, *within: Within) -> Script:
    at = SourceLine(file="train.py", line=4, text=f'os.environ["{name}"] = {value}', function="")
    setting = SourceSetting(name=f"os.environ[{name}]", value=value, at=at, within=within)
    return Script(files=("train.py",), settings=(setting,))


@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "CUDA_LAUNCH_BLOCKING"])
def test_one_that_the_script_sets(findings: Findings, name: str) -> None:
    (finding,) = findings(CAUSE, source(name, "'1'"), gpus(2))
    assert f"train.py:4 (`os.environ[\"{name}\"] = '1'`) sets {name}=1" in finding.because
    assert finding.fixes[0].paste == f"{name}=1 torchrun …"


@pytest.mark.parametrize(
    ("script", "sections"),
    [
        (source("NCCL_P2P_DISABLE", '"0"'), (gpus(2),)),
        (source("NCCL_P2P_DISABLE", "value"), (gpus(2),)),
        (source("NCCL_P2P_DISABLE", '"1"', "condition"), (gpus(2),)),
        # It is no loss where the path would not work.
        (source("NCCL_P2P_DISABLE", '"1"'), (gpus(2, read="chipset"),)),
        (source("NCCL_P2P_DISABLE", '"1"'), ()),
    ],
)
def test_quiet_about_the_script(
    findings: Findings, script: Script, sections: tuple[Gpus, ...]
) -> None:
    assert findings(CAUSE, script, *sections) == ()


def test_one_finding_where_the_environment_has_it_too(findings: Findings) -> None:
    there = environment(NCCL_P2P_DISABLE="1")
    assert len(findings(CAUSE, source("NCCL_P2P_DISABLE", '"1"'), there, gpus(2))) == 1
