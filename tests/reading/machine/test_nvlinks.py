"""nvidia-smi nvlink and dcgmi nvlink: states of links, and their error counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.printed import NvLinkErrors
from ddoctor.models import Confidence, Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read
from tests.reading.machine.nvidia_smi_texts import Card, table

H100, A100_PCIE = "NVIDIA H100 80GB HBM3", "NVIDIA A100 80GB PCIe"
NONE_ACTIVE = "NVML: Unable to retrieve NVLink information as all links are inActive"


def head(index: int, name: str = H100) -> str:
    return f"GPU {index}: {name} (UUID: GPU-5a0c1d2e-0000-1111-2222-33334444555{index})"


def status(*links: str, name: str = H100) -> str:
    """`nvidia-smi nvlink -s`; U: up, D: inactive, for each GPU; empty: none is listed."""
    lines = []
    for index, states in enumerate(links):
        lines.append(head(index, name))
        lines += [
            f"\t Link {link}: {'26.562 GB/s' if state == 'U' else '<inactive>'}"
            for link, state in enumerate(states)
        ]
        lines += [] if states else [f"\t {NONE_ACTIVE}"]
    return "\n".join(lines) + "\n"


def counted(*counts: Mapping[str, int], links: int = 3) -> str:
    """`nvidia-smi nvlink -e`; the counters of each GPU's last link."""
    lines = []
    for index, own in enumerate(counts):
        lines.append(head(index))
        for link in range(links):
            lines += [
                f"\t Link {link}: {name}: {count if link == links - 1 else 0}"
                for name, count in own.items()
            ]
            lines.append("")
    return "\n".join(lines)


def of_dcgm(gpus: Sequence[str], switches: Sequence[str] = ()) -> str:
    """`dcgmi nvlink -s`."""
    lines = ["+----------------------+", "|  NvLink Link Status  |", "+----------------------+"]
    lines.append("GPUs:")
    for index, states in enumerate(gpus):
        lines += [f"    gpuId {index}:", f"        {' '.join(states)}"]
    lines.append("NvSwitches:")
    for index, states in enumerate(switches):
        lines += [f"    physicalId {index + 8}:", f"        {' '.join(states)}"]
    lines += [] if switches else ["    No NvSwitches found."]
    return "\n".join([*lines, "", "Key: Up=U, Down=D, Disabled=X, Not Supported=_", ""])


def errors_of_dcgm(gpu: int, **counts: str) -> str:
    """`dcgmi nvlink -e -g`; the counters of the second of two links."""
    line = f"+{'-' * 29}+{'-' * 48}+"
    lines = [line, f"| {'NVLINK Error Counts':<77}|", f"| {f'GPU {gpu}':<77}|", line]
    for link in range(2):
        lines.append(f"| {f'Link {link}':<28}|{'':<48}|")
        for name, count in counts.items():
            told = count if link else "0"
            lines.append(f"| {'-> ' + name.replace('_', ' '):<28}| {told:<47}|")
    return "\n".join([*lines, line, ""])


OLD = {"Replay Errors": 0, "Recovery Errors": 0, "CRC Errors": 0}
BLACKWELL = {
    "Tx packets": 917_233,
    "Malformed packet Errors": 0,
    "Link recovery successful events": 0,
    "Link recovery failed events": 0,
    "Total link recovery events": 0,
    "Effective Errors": 0,
}
OF_DCGM = {"CRC_FLIT_Error": "0", "CRC_Data_Error": "0", "Replay_Error": "0"}
UP = "U" * 18


def test_the_states_by_hand(read: Read) -> None:
    (section,) = read(status("UUDU", "UUUU")).all(Gpus)
    assert [one.name for one in section.gpus] == [H100, H100]
    assert [one.active for one in section.gpus[0].nvlinks or ()] == [True, True, False, True]
    assert section.gpus[0].uuid.startswith("GPU-5a0c")


def test_the_counters_by_hand(read: Read) -> None:
    (section,) = read(counted({**OLD, "Recovery Errors": 4, "CRC Errors": 7})).all(NvLinkErrors)
    assert [(one.link, one.recoveries, one.repaired) for one in section.links] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 4, 7),
    ]


@pytest.mark.parametrize(
    ("text", "device", "said"),
    [
        (status(UP, UP[:-2] + "DD", UP, UP), 1, "16 active NVLinks, equal GPUs have 18 (down: 16"),
        (status(UP, UP, "", UP), 2, "0 active NVLinks, equal GPUs have 18"),
        (of_dcgm([UP, UP, UP[:-1] + "D"]), 2, "17 active NVLinks, equal GPUs have 18 (down: 17)"),
        (of_dcgm(["D" * 6 + "_" * 12, *["U" * 6 + "_" * 12] * 3]), 0, "0 active NVLinks"),
        (of_dcgm(["UUUD", "UUUD"], ["UUXXUU"]), 0, "3 active NVLinks, of 4 (down: 3)"),
    ],
)
def test_links_that_are_down(diagnose: Diagnose, text: str, device: int, said: str) -> None:
    finding = diagnose(text).findings[0]
    assert (finding.cause, finding.severity) == ("nvlink-degraded", Severity.WARNING)
    assert finding.where.devices == (f"cuda:{device}",)
    assert said in finding.because


BRIDGED = (UP[:12], UP[:12], "D" * 12)


@pytest.mark.parametrize(
    "text",
    [
        status(UP, UP, UP),
        status(UP),
        status("", "", name=A100_PCIE),
        status(*BRIDGED, name=A100_PCIE),
        status(*BRIDGED, "", name=A100_PCIE),
        status("UUUUDD", "UUUUDD", "UUUUDD", name="Tesla V100-SXM2-16GB"),
        status(UP[:12]) + status("D" * 4, name="NVIDIA RTX A6000").replace("GPU 0", "GPU 1"),
        of_dcgm(["U" * 12 + "_" * 6] * 8, ["UUXXXUU", "UUDXXUU"]),
        of_dcgm(["_" * 18] * 8),
        of_dcgm(["D" * 12]),
        of_dcgm(["D" * 12] * 4),
        of_dcgm(["D" * 12] * 4, ["D" * 36]),
        of_dcgm([UP[:12], UP[:12], "D" * 12, "D" * 12]),
        of_dcgm([UP, UP[:-2] + "XX", UP], ["U" * 36]),
        of_dcgm([]),
        "\n".join(head(index) for index in range(8)),
    ],
)
def test_what_is_no_lost_link(diagnose: Diagnose, text: str) -> None:
    assert diagnose(text).findings == ()


def test_a_gpu_with_mig_has_no_links(diagnose: Diagnose) -> None:
    cards = [Card(mig="Enabled" if index == 1 else "Disabled") for index in range(4)]
    text = table("550.54.15", cards) + status("UUUU", "DDDD", "UUUU", "UUUU", name=cards[0].name)
    assert [one.cause for one in diagnose(text).findings] == ["gpu-mig-enabled"]


@pytest.mark.parametrize(
    "text",
    [
        counted(OLD, {**OLD, "Recovery Errors": 12}),
        counted(BLACKWELL, {**BLACKWELL, "Link recovery failed events": 12}),
        errors_of_dcgm(0, **OF_DCGM, Recovery_Error="0")
        + errors_of_dcgm(1, **OF_DCGM, Recovery_Error="12"),
    ],
)
def test_recoveries_are_a_warning(diagnose: Diagnose, text: str) -> None:
    (finding,) = diagnose(text).findings
    assert (finding.cause, finding.severity) == ("nvlink-degraded", Severity.WARNING)
    assert (finding.confidence, finding.where.devices) == (Confidence.POSSIBLE, ("cuda:1",))
    assert "of GPU 1 (12) since the driver was loaded" in finding.because


@pytest.mark.parametrize(
    "text",
    [
        counted(OLD, {**OLD, "CRC Errors": 3}),
        counted(OLD, {**OLD, "Replay Errors": 1}),
        errors_of_dcgm(1, CRC_FLIT_Error="3", Recovery_Error="0"),
    ],
)
def test_what_a_link_repairs_is_a_note(diagnose: Diagnose, text: str) -> None:
    (finding,) = diagnose(text).findings
    assert (finding.cause, finding.severity) == ("nvlink-degraded", Severity.NOTE)


@pytest.mark.parametrize(
    "text",
    [
        counted(OLD, OLD),
        counted({**BLACKWELL, "Link recovery successful events": 2, "Symbol Errors": 5}),
        counted({**OLD, "FEC Errors - 0": 17_941_761}),
        errors_of_dcgm(0, **OF_DCGM, Recovery_Error="0"),
        errors_of_dcgm(0, CRC_FLIT_Error="Not Supported", Recovery_Error="9223372036854775794"),
        f"{head(0)}\n\t Link 0, P2P is supported: true\n\t Link 0, Access to system memory: true\n",
        f"{head(0)}\n\t Link 0: Remote Device 00000000:C4:00.0: Link 28\n",
        "Link 0: Recovery Errors: 3\n",
    ],
)
def test_sound_counters_are_quiet(diagnose: Diagnose, text: str) -> None:
    assert diagnose(text).findings == ()


def test_the_last_output_of_a_command_counts(diagnose: Diagnose) -> None:
    sick, sound = status(UP, UP[:-1] + "D", UP), status(UP, UP, UP)
    assert diagnose(f"$ nvidia-smi nvlink -s\n{sick}$ nvidia-smi nvlink -s\n{sound}").findings == ()


def test_one_gpu_at_a_time(diagnose: Diagnose) -> None:
    texts = [status(UP), status(UP[:-1] + "D").replace("GPU 0", "GPU 1")]
    asked = "\n".join(f"$ nvidia-smi nvlink -s -i {n}\n{text}" for n, text in enumerate(texts))
    (finding,) = diagnose(asked).findings
    assert finding.where.devices == ("cuda:1",)
