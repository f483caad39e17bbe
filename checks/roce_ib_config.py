"""The RDMA devices exist, but their configuration prevents a connection.

NCCL_IB_HCA may name a device that does not exist; NCCL then falls back to TCP. NCCL_IB_GID_INDEX
may select an empty row of the GID table, or a row that routers do not forward (RoCE v1, or a
link-local address). A port may be down, or slower than its siblings. NCCL 2.21 and later choose the
RoCE v2 row of an IPv4 address themselves; NVIDIA's guide advises against NCCL_IB_GID_INDEX.

Symptoms: "Got completion with error 12", "ibv_modify_qp failed with 110 Connection timed out" or
"NET/IB : No device found" in NCCL's log; ``show_gids`` and ``ibstat`` show rows and ports.

To fix it, unset the variable, or repair the port.
"""

# Above 150 lines: it judges the device list, the GID index and the ports.

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.environment_fixes import export
from ddoctor.analysis.interface_choice import matches, names_of
from ddoctor.analysis.parsing import whole
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.log import Log
from ddoctor.evidence.network import Rdma, RdmaDevice, RdmaPort
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# ibv_wc_status, IBV_WC_RETRY_EXC_ERR: the other adapter did not answer.
TIMEOUT = "12"
EXPLAINS = (
    "network-unreachable",
    "slow-network-link",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)

# Dual-port cards with one cable and separate storage cards are usual. So a port that is down counts
# only if three quarters of its siblings are up and yet not every GPU has one.
SIBLINGS_UP = 0.75


def device_list(rdma: Rdma) -> Iterator[Finding]:
    value = rdma.nccl_ib_hca
    if not value or value.startswith("^"):
        return
    if not rdma.devices:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"NCCL_IB_HCA={value}, but this host has no RDMA device: NCCL runs over TCP; "
                "`lspci` shows whether a card is installed"
            ),
            evidence=(Observation(name="RDMA devices", value=0, source="/sys/class/infiniband"),),
            fixes=(
                Fix(
                    summary="check for a card without its driver",
                    paste="lspci -nn | grep -iE 'infiniband|mellanox|efa'\nlsmod | grep ib_core",
                ),
                Fix(
                    summary="or unset NCCL_IB_HCA, if this host has no card",
                    paste="unset NCCL_IB_HCA",
                ),
            ),
        )
        return
    prefix = "=" if value.startswith("=") else ""
    names = [device.name for device in rdma.devices]
    absent = [
        one for one in names_of(value) if not any(matches(prefix + one, name) for name in names)
    ]
    if not absent:
        return
    there = ",".join(device.name for device in rdma.fabric)
    none = len(absent) == len(names_of(value))
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"NCCL_IB_HCA={value} names {', '.join(absent)}, but this host has {', '.join(names)}: "
            + ("NCCL falls back to TCP" if none else "NCCL uses only the others")
        ),
        evidence=(Observation(name="NCCL_IB_HCA", value=value, expected=there),),
        fixes=(
            Fix(
                summary="let NCCL find the devices",
                paste="unset NCCL_IB_HCA",
                environment=("NCCL_IB_HCA",),
            ),
            export(f"NCCL_IB_HCA=={there}", "or name the devices with an active port"),
        ),
    )


def gid_index(rdma: Rdma) -> Iterator[Finding]:
    value = whole(rdma.nccl_ib_gid_index or "")
    if value is None:
        return
    for device, port in _ports(rdma.fabric, "Ethernet"):
        if port.state != "ACTIVE" or port.gids is None:
            continue
        row = next((gid for gid in port.gids if gid.index == value), None)
        better = next((gid for gid in port.gids if gid.kind == "RoCE v2" and gid.ipv4), None)
        routed = row is not None and row.kind == "RoCE v2" and not row.gid.startswith("fe80:")
        if row is not None and (better is None or routed):
            continue
        what = f"{row.kind} {row.gid}, which routers do not forward" if row is not None else "empty"
        instead = f"; row {better.index} is RoCE v2 {better.ipv4}" if better is not None else ""
        older = f"an older NCCL needs export NCCL_IB_GID_INDEX={better.index}" if better else ""
        yield Finding(
            severity=Severity.ERROR if row is None else Severity.WARNING,
            confidence=Confidence.CERTAIN if row is None else Confidence.LIKELY,
            because=f"row {value} (NCCL_IB_GID_INDEX) of {device.name} is {what}{instead}",
            where=Where(devices=(device.name,)),
            evidence=(
                Observation(
                    name=f"GID {value} of {device.name} port {port.number}",
                    value=row.gid if row is not None else "empty",
                    expected=better.gid if better is not None else None,
                    source="/sys/class/infiniband, gids and gid_attrs",
                ),
            ),
            fixes=(
                Fix(
                    summary="let NCCL choose the row (NCCL 2.21 and later)",
                    paste="unset NCCL_IB_GID_INDEX",
                    caution=older,
                    environment=("NCCL_IB_GID_INDEX",),
                ),
            ),
        )


def ports(rdma: Rdma, gpus: Gpus | None) -> Iterator[Finding]:
    wanted = len(gpus.gpus) if gpus is not None else 0
    for layer in ("InfiniBand", "Ethernet"):
        siblings = [
            (device, port)
            for device, port in _ports(rdma.devices, layer)
            if device.is_hardware and port.physical_state != "Disabled"
        ]
        best = max(
            (port.rate or 0.0 for _, port in siblings if port.state == "ACTIVE"), default=0.0
        )
        odd = [pair for pair in siblings if pair[1].state != "ACTIVE" or (pair[1].rate or 0) < best]
        good = len(siblings) - len(odd)
        short = good < wanted <= len(siblings) and good >= SIBLINGS_UP * len(siblings)
        for device, port in odd:
            if port.state == "INIT" and layer == "InfiniBand":
                what = "is INIT: its link is up, but no subnet manager has configured it"
            elif short:
                what = (
                    f"is {port.state} at {port.rate or 0:.0f} Gbit/s; only its {good} siblings are "
                    f"ACTIVE at {best:.0f} Gbit/s, too few for {wanted} GPUs"
                )
            else:
                continue
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"{device.name} port {port.number} {what}",
                where=Where(devices=(device.name,)),
                evidence=(
                    Observation(
                        name=f"state of {device.name} port {port.number}",
                        value=f"{port.state}, {port.physical_state}",
                        expected="ACTIVE, LinkUp",
                        source="/sys/class/infiniband",
                    ),
                ),
                fixes=(
                    Fix(
                        summary="check cable, transceiver, switch port and the counters",
                        paste=f"ibstat {device.name}; rdma statistic show link {device.name}/1",
                        caution=f"to run without it meanwhile: export NCCL_IB_HCA=^={device.name}",
                    ),
                ),
            )


def in_a_log(log: Log) -> Iterator[Finding]:
    events = log.of("ib-completion", "ib-queue-pair")
    # The first to fail is a timeout; the flushes of other queues follow from it.
    first = [one for one in events if one.values.get("status", TIMEOUT) == TIMEOUT]
    if not first and log_events.refused_access(log):
        return  # pcie-acs-iommu reports it.
    for event in first or events:
        yield log_events.finding(
            [event],
            "the adapters of the two machines found each other, but no data passes between them",
            Fix(
                summary="compare the GIDs, ports and partitions of both machines",
                paste="show_gids; ibstat; ibv_devinfo -v | grep -E 'GID|state|link_layer'",
            ),
            Fix(
                summary="for RoCE v2, choose its GID and the adapters of one fabric",
                paste="export NCCL_IB_GID_INDEX=3 NCCL_IB_HCA=mlx5",
                caution="the index may differ on each machine",
            ),
            confidence=Confidence.LIKELY if first else Confidence.POSSIBLE,
        )
        return


def two_fabrics_in_a_log(log: Log) -> Iterator[Finding]:
    for event in log.of("nccl-devices"):
        listed = event.values["devices"].split()
        roce = [one.partition("]")[2].partition("/")[0] for one in listed if "/RoCE" in one]
        if roce and any(one.endswith("/IB") for one in listed) and 2 * len(roce) < len(listed):
            yield log_events.finding(
                [event],
                f"NCCL uses {' and '.join(roce)} over Ethernet in addition to InfiniBand: it "
                "spreads the data over all of them, and the slowest one decides",
                Fix(
                    summary="leave the adapters for Ethernet out",
                    paste=f"export NCCL_IB_HCA=^{','.join(one.partition(':')[0] for one in roce)}",
                ),
                severity=Severity.WARNING,
                confidence=Confidence.POSSIBLE,
            )
            return


def fewer_devices_in_a_log(log: Log) -> Iterator[Finding]:
    """A host on which NCCL uses fewer of the devices that it uses on another one."""
    used: dict[str, dict[str, None]] = {}
    for event in log.of("nccl-devices"):
        names = (one.partition("]")[2] for one in event.values["devices"].split())
        if event.host:
            # Each process may be given its own.
            used.setdefault(event.host, {}).update(dict.fromkeys(names))
    most = max(used, key=lambda host: len(used[host]), default="")
    for host, devices in used.items():
        missing = [one for one in used[most] if one not in devices]
        if not missing or not devices.keys() <= used[most].keys():
            continue
        away = ", ".join(one.partition(":")[0] for one in missing)
        yield log_events.finding(
            [one for one in log.of("nccl-devices") if one.host in (host, most)],
            f"{host} uses {len(devices)} RDMA devices and {most} {len(used[most])}: {away} is "
            "missing, as where a port is down, and the host with the fewest decides",
            Fix(
                summary=f"find out on {host} why it is not used",
                paste=f"ibstat {away.partition(',')[0]}; rdma link\ndmesg | grep mlx5 | tail",
            ),
            severity=Severity.WARNING,
            confidence=Confidence.POSSIBLE,
            at=Where(hosts=(host,)),
        )
        return


def _ports(devices: Iterable[RdmaDevice], layer: str) -> Iterator[tuple[RdmaDevice, RdmaPort]]:
    for device in devices:
        for port in device.ports:
            if port.link_layer == layer:
                yield device, port
