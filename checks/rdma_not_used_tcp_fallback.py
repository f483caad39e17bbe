"""RDMA devices are present, but NCCL cannot use them and silently falls back to TCP.

NCCL reaches InfiniBand and RoCE through libibverbs and /dev/infiniband/uverbs*, and EFA through a
plug-in (libnccl-net.so, aws-ofi-nccl). Containers often lack one of these. NCCL then uses its
socket transport: everything works, at a fraction of the bandwidth between nodes.

Symptoms: NCCL_DEBUG=INFO prints "NET/Socket : Using" instead of "NET/IB : Using" (or "Selected
Provider is efa"). Only multi-node runs lose speed, so a single node gets a note, unless the fabric
is InfiniBand or EFA, which only serve such runs.

To fix it, install libibverbs or the EFA plug-in, and pass /dev/infiniband into the container.
"""

# Above 150 lines: verbs, EFA and logs show it differently.

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.host import Kernel
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.log import Log
from ddoctor.evidence.network import Rdma, RdmaDevice, Rendezvous
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "gdr-peer-memory-missing",
    "collective-slow-for-hardware",
    "slow-network-link",
    "communication-bound-step",
    "network-unreachable",
)

SEVERAL_GPUS = 4
"""GPUs of a pod from which on its host mostly has RDMA."""


def of_pods(launch: Launch) -> Iterator[Finding]:
    """Pods that span hosts, and get no RDMA device."""
    pods, gpus = launch.get("pods"), launch.get("gpus-per-host")
    if pods is None or gpus is None or (pods.number or 1) < 2:
        return
    if (gpus.number or 0) >= SEVERAL_GPUS and launch.get("rdma") is None:
        own = launch.on("host-network")
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            because=f"{pods.value} pods ({pods.at}) of {gpus.value} GPUs each ask for no RDMA "
            f"device{'' if own else ', and have no host network'}: NCCL then uses TCP between them",
            evidence=(Observation(name="pods", value=pods.number or 0, source=pods.at),),
            fixes=(
                Fix(
                    summary="ask for the device that your cluster names, if its hosts have one",
                    paste="resources:\n  limits:\n    rdma/hca: 1  # or vpc.amazonaws.com/efa: 4\n"
                    "securityContext:\n  capabilities: {add: [IPC_LOCK]}",
                    language="text",
                ),
            ),
        )


INSTALL = "apt-get install -y libibverbs1 ibverbs-providers || dnf install -y libibverbs rdma-core"


def verbs(rdma: Rdma, rendezvous: Rendezvous | None, kernel: Kernel | None) -> Iterator[Finding]:
    devices = tuple(device for device in rdma.fabric if device.driver != "efa")
    # A tool that lists devices has just used them.
    if not devices or rdma.printed:
        return
    refused = [node for node in rdma.verbs_nodes if node.refused]
    container = kernel.container if kernel is not None else ""
    offered = rdma.verbs_devices
    if rdma.libibverbs is None:
        because, fix = "libibverbs cannot be loaded", _install("libibverbs and its providers")
    elif not rdma.verbs_nodes:
        because, fix = "/dev/infiniband has no uverbs device", _give_devices(container)
    elif len(refused) == len(rdma.verbs_nodes):
        because = f"{refused[0].path} cannot be opened ({refused[0].refused})"
        fix = _give_devices(container)
    elif offered is not None and not {device.name for device in devices} & set(offered):
        because = f"libibverbs lists none of them: the provider of {devices[0].driver} is missing"
        fix = _install("the libibverbs providers")
    else:
        return
    yield _finding(devices, because, fix, rdma, rendezvous)


def efa(rdma: Rdma, rendezvous: Rendezvous | None) -> Iterator[Finding]:
    devices = tuple(device for device in rdma.fabric if device.driver == "efa")
    if not devices or rdma.net_plugin is not None or rdma.printed:
        return
    name = f"libnccl-net-{rdma.nccl_net_plugin}.so" if rdma.nccl_net_plugin else "libnccl-net.so"
    because = f"the dynamic loader does not find NCCL's EFA plug-in, {name}"
    if (aside := rdma.net_plugin_aside) is not None:
        folder, _, found = aside.rpartition("/")
        because += f"; it is installed as {aside}"
        load = f"export LD_LIBRARY_PATH={folder}:/opt/amazon/efa/lib:$LD_LIBRARY_PATH"
        if found != name:
            load += f"\nexport NCCL_NET_PLUGIN={aside}"
        fix = Fix(summary="add the plug-in's directory to LD_LIBRARY_PATH", paste=load)
    else:
        fix = Fix(
            summary="install the EFA software with its plug-in in this image",
            paste=(
                "curl -O https://efa-installer.amazonaws.com/aws-efa-installer-latest.tar.gz\n"
                "tar -xf aws-efa-installer-latest.tar.gz && cd aws-efa-installer\n"
                "./efa_installer.sh -y --skip-kmod"
            ),
        )
    yield _finding(devices, because, fix, rdma, rendezvous)


def in_a_log(log: Log) -> Iterator[Finding]:
    opens = log.of("ib-open")
    # Without the library, only an interface of InfiniBand shows that there is an adapter.
    over_ib = any("]ib" in one.values["interfaces"] for one in log.of("nccl-interfaces"))
    opens = opens or (log.of("ib-library") if over_ib else ())
    if opens and log.of("ib-none", "nccl-network", "nccl-interfaces"):
        yield log_events.finding(
            opens,
            "an RDMA adapter is there but cannot be opened, and NCCL uses TCP instead",
            Fix(
                summary="give the devices to the container, and install their library",
                paste="docker run --device=/dev/infiniband --cap-add=IPC_LOCK …\n"
                "apt-get install -y rdma-core ibverbs-providers",
            ),
            severity=Severity.WARNING,
        )
    elif (asked := log.of("ib-asked")) and (none := log.of("ib-none")):
        yield log_events.finding(
            [*none, *asked],
            f"NCCL_IB_HCA names {asked[0].values['value']}, but NCCL finds no RDMA device and uses "
            "TCP",
            Fix(
                summary="see which devices the ranks have, and give them to the container",
                paste="ls /sys/class/infiniband /dev/infiniband; ibv_devices\n"
                "docker run --device=/dev/infiniband --cap-add=IPC_LOCK …",
            ),
            severity=Severity.WARNING,
        )
    yield from _on_some_hosts(log)
    failed, networks = log.of("ofi-failed"), log.of("nccl-network")
    if failed and any(one.values["network"] == "Socket" for one in networks):
        has_efa = any(one.values.get("provider") == "efa" for one in log.of("nccl-plugin"))
        yield log_events.finding(
            failed,
            "the plug-in for EFA finds the devices and cannot use them, and NCCL uses TCP instead"
            if has_efa
            else "the plug-in for EFA has found no network that it can use, and NCCL uses TCP "
            "instead",
            Fix(
                summary="see what libfabric finds, in the container of the ranks",
                paste="fi_info -p efa -t FI_EP_RDM\nls /dev/infiniband",
                caution="a machine without EFA is quite well over TCP",
            ),
            severity=Severity.WARNING if has_efa or log.several_hosts else Severity.NOTE,
            confidence=Confidence.LIKELY if has_efa else Confidence.POSSIBLE,
        )


def _on_some_hosts(log: Log) -> Iterator[Finding]:
    used: dict[str, set[str]] = {}
    for event in log.of("nccl-network"):
        if event.host:
            used.setdefault(event.host, set()).add(event.values["network"])
    without = [host for host, networks in used.items() if networks == {"Socket"}]
    others = set().union(*used.values()) - {"Socket"}
    if without and others and not any({"Socket"} < networks for networks in used.values()):
        events = [one for one in log.of("nccl-network") if one.host in without]
        yield log_events.finding(
            events,
            f"NCCL uses {', '.join(sorted(others))} on other hosts, and TCP on "
            f"{', '.join(without)}",
            Fix(
                summary="compare the hosts: devices, image, and variables of NCCL",
                paste="ls /sys/class/infiniband /dev/infiniband; ibv_devices; env | grep NCCL",
            ),
            severity=Severity.WARNING,
        )


def _finding(
    devices: tuple[RdmaDevice, ...],
    because: str,
    fix: Fix,
    rdma: Rdma,
    rendezvous: Rendezvous | None,
) -> Finding:
    matters = rdma.between_nodes or bool(rendezvous and rendezvous.several_nodes)
    names = tuple(device.name for device in devices)
    efa_only = all(device.driver == "efa" for device in devices)
    return Finding(
        severity=Severity.WARNING if matters else Severity.NOTE,
        confidence=Confidence.CERTAIN,
        because=f"NCCL cannot use the active RDMA devices {', '.join(names)}: {because}",
        where=Where(devices=names),
        evidence=(
            Observation(
                name="active RDMA devices", value=len(names), source="/sys/class/infiniband"
            ),
            Observation(name="libibverbs", value=rdma.libibverbs or "not found"),
            Observation(name="uverbs devices", value=len(rdma.verbs_nodes), expected=len(names)),
        ),
        fixes=(
            fix,
            Fix(
                summary="set NCCL_NET, so that NCCL fails instead of falling back to TCP",
                paste='export NCCL_NET="AWS Libfabric"' if efa_only else "export NCCL_NET=IB",
            ),
        ),
    )


def _install(what: str) -> Fix:
    return Fix(summary=f"install {what} in this image, as root", paste=INSTALL)


def _give_devices(container: str) -> Fix:
    if container == "kubernetes":
        return Fix(
            summary="request a device from the RDMA device plug-in of the cluster",
            paste=(
                "resources:\n"
                "  limits:\n"
                "    rdma/hca_shared_devices_a: 1\n"
                "securityContext:\n"
                "  capabilities: {add: [IPC_LOCK]}\n"
            ),
            language="yaml",
            caution="the resource name differs between clusters: see `kubectl describe node`",
        )
    if container:
        return Fix(
            summary="start the container with the RDMA devices",
            paste=(
                "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 "
                "--network=host …"
            ),
        )
    return Fix(
        summary="load the module, and allow all users to open the devices, as root",
        paste="modprobe ib_uverbs && chmod 0666 /dev/infiniband/uverbs*",
        caution="lasts until the next boot; the udev rules of rdma-core make it permanent",
    )
