"""ibstat and ibv_devinfo."""

from __future__ import annotations

import pytest

from ddoctor.evidence.network import Rdma
from ddoctor.models import Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read


def ibstat(*ports: tuple[str, str, str]) -> str:
    """Devices with a port each: state, rate and link layer."""
    return "".join(
        f"CA 'mlx5_{number}'\n\tCA type: MT4129\n\tNumber of ports: 1\n"
        "\tFirmware version: 28.39.1002\n\tHardware version: 0\n\tNode GUID: 0xa088c20300096050\n"
        f"\tSystem image GUID: 0xa088c20300096050\n\tPort 1:\n\t\tState: {state}\n"
        f"\t\tPhysical state: {'Polling' if state == 'Down' else 'LinkUp'}\n\t\tRate: {rate}\n"
        f"\t\tBase lid: 65535\n\t\tLMC: 0\n\t\tSM lid: 0\n\t\tCapability mask: 0x00010000\n"
        f"\t\tPort GUID: 0xa088c20300096050\n\t\tLink layer: {layer}\n"
        for number, (state, rate, layer) in enumerate(ports)
    )


def devinfo(*ports: tuple[str, str]) -> str:
    """Devices with a port each: state and link layer."""
    return "\n".join(
        f"hca_id:\tmlx5_{number}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t28.39.1002\n"
        "\tnode_guid:\t\t\ta088:c203:0096:05fc\n\tvendor_id:\t\t\t0x02c9\n\thw_ver:\t\t\t\t0x0\n"
        "\tboard_id:\t\t\tMT_0000000838\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n"
        f"\t\t\tstate:\t\t\t{state}\n\t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tsm_lid:\t\t\t1\n"
        f"\t\t\tlink_layer:\t\t{layer}\n"
        for number, (state, layer) in enumerate(ports)
    )


UP = ("Active", "400", "InfiniBand")


def test_devices_of_ibstat(read: Read) -> None:
    (section,) = read(ibstat(UP, ("Down", "10", "Ethernet"))).all(Rdma)
    first, second = section.devices
    assert (first.name, first.board, first.firmware) == ("mlx5_0", "MT4129", "28.39.1002")
    (port,) = first.ports
    assert (port.number, port.state, port.rate) == (1, "ACTIVE", 400.0)
    assert (port.physical_state, port.link_layer) == ("LinkUp", "InfiniBand")
    assert second.ports[0].state == "DOWN"
    assert section.fabric == (first,)


def test_devices_of_ibv_devinfo(read: Read) -> None:
    text = devinfo(("PORT_ACTIVE (4)", "InfiniBand"), ("PORT_DOWN (1)", "Ethernet"))
    (section,) = read(text).all(Rdma)
    assert [one.ports[0].state for one in section.devices] == ["ACTIVE", "DOWN"]
    assert section.devices[0].board == "MT_0000000838"


def test_both_of_one_host(read: Read) -> None:
    text = ibstat(UP) + "\n$ ibv_devinfo\n" + devinfo(("PORT_ACTIVE (4)", "InfiniBand"))
    (section,) = read(text).all(Rdma)
    assert [one.name for one in section.devices] == ["mlx5_0"]
    assert section.devices[0].ports[0].rate == 400.0


def test_a_port_without_a_subnet_manager(diagnose: Diagnose) -> None:
    (finding,) = diagnose(ibstat(UP, ("Initializing", "400", "InfiniBand"))).findings
    assert (finding.cause, finding.where.devices) == ("roce-ib-config", ("mlx5_1",))


SOFT = ibstat(("Active", "2.5", "Ethernet")).replace("MT4129", "").replace("28.39.1002", "")


@pytest.mark.parametrize(
    "text",
    [
        ibstat(*[UP] * 8),
        ibstat(UP, UP, ("Down", "10", "Ethernet"), ("Active", "25", "Ethernet")),
        ibstat(("Active", "200", "Ethernet")),
        devinfo(*[("PORT_ACTIVE (4)", "InfiniBand")] * 4),
        devinfo(("PORT_DOWN (1)", "Ethernet")),
        SOFT,
    ],
)
def test_sound_devices_raise_no_alarm(diagnose: Diagnose, text: str) -> None:
    report = diagnose(text)
    assert [one for one in report.findings if one.severity > Severity.NOTE] == []


def test_soft_roce_is_no_card(read: Read) -> None:
    (section,) = read(SOFT).all(Rdma)
    assert section.fabric == ()
