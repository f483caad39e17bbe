"""RDMA devices are there, and NCCL cannot use them: it runs over TCP without a word.

NCCL reaches InfiniBand and RoCE through libibverbs and /dev/infiniband/uverbs*, and EFA through a
plug-in (libnccl-net.so, aws-ofi-nccl). In a container all of them are easily missing. NCCL then
takes its socket transport: everything works, at a fraction of the bandwidth between nodes.

Seen from outside: NCCL_DEBUG=INFO says "NET/Socket : Using" where "NET/IB : Using" (or "Selected
Provider is efa") should be. Nodes are needed for it to cost anything: on one node it is a note,
unless the fabric is InfiniBand or EFA, which is there for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.host import Kernel
from ddoctor.evidence.network import Rdma, RdmaDevice, Rendezvous
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("collective-slow-for-hardware", "slow-network-link", "communication-bound-step")

INSTALL = "apt-get install -y libibverbs1 ibverbs-providers || dnf install -y libibverbs rdma-core"


def verbs(rdma: Rdma, rendezvous: Rendezvous | None, kernel: Kernel | None) -> Iterator[Finding]:
    devices = tuple(device for device in rdma.fabric if device.driver != "efa")
    if not devices:
        return
    refused = [node for node in rdma.verbs_nodes if node.refused]
    container = kernel.container if kernel is not None else ""
    offered = rdma.verbs_devices
    if rdma.libibverbs is None:
        because, fix = "libibverbs cannot be loaded", _install("the library and its providers")
    elif not rdma.verbs_nodes:
        because, fix = "/dev/infiniband has no uverbs device", _give_devices(container)
    elif len(refused) == len(rdma.verbs_nodes):
        because = f"{refused[0].path} cannot be opened ({refused[0].refused})"
        fix = _give_devices(container)
    elif offered is not None and not {device.name for device in devices} & set(offered):
        because = f"libibverbs offers none of them: the provider of {devices[0].driver} is missing"
        fix = _install("the providers")
    else:
        return
    yield _finding(devices, because, fix, rdma, rendezvous)


def efa(rdma: Rdma, rendezvous: Rendezvous | None) -> Iterator[Finding]:
    devices = tuple(device for device in rdma.fabric if device.driver == "efa")
    if not devices or rdma.net_plugin is not None:
        return
    name = f"libnccl-net-{rdma.nccl_net_plugin}.so" if rdma.nccl_net_plugin else "libnccl-net.so"
    because = f"the loader does not find NCCL's plug-in for EFA, {name}"
    if (aside := rdma.net_plugin_aside) is not None:
        folder, _, found = aside.rpartition("/")
        because += f"; {aside} is installed"
        load = f"export LD_LIBRARY_PATH={folder}:/opt/amazon/efa/lib:$LD_LIBRARY_PATH"
        if found != name:
            load += f"\nexport NCCL_NET_PLUGIN={aside}"
        fix = Fix(summary="let the loader look where the plug-in is", paste=load)
    else:
        fix = Fix(
            summary="install EFA's software with the plug-in in this image",
            paste=(
                "curl -O https://efa-installer.amazonaws.com/aws-efa-installer-latest.tar.gz\n"
                "tar -xf aws-efa-installer-latest.tar.gz && cd aws-efa-installer\n"
                "./efa_installer.sh -y --skip-kmod"
            ),
        )
    yield _finding(devices, because, fix, rdma, rendezvous)


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
        because=f"{', '.join(names)} can carry traffic, but {because}",
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
                summary="and let a fallback fail loudly from then on",
                paste='export NCCL_NET="AWS Libfabric"' if efa_only else "export NCCL_NET=IB",
            ),
        ),
    )


def _install(what: str) -> Fix:
    return Fix(summary=f"install {what} in this image, as root", paste=INSTALL)


def _give_devices(container: str) -> Fix:
    if container == "kubernetes":
        return Fix(
            summary="ask the RDMA device plug-in of the cluster for a device",
            paste=(
                "resources:\n"
                "  limits:\n"
                "    rdma/hca_shared_devices_a: 1\n"
                "securityContext:\n"
                "  capabilities: {add: [IPC_LOCK]}\n"
            ),
            language="yaml",
            caution="`kubectl describe node` shows the resource's name, which differs by cluster",
        )
    if container:
        return Fix(
            summary="start the container with the devices",
            paste=(
                "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 "
                "--network=host …"
            ),
        )
    return Fix(
        summary="load the module, and give everybody the devices, as root",
        paste="modprobe ib_uverbs && chmod 0666 /dev/infiniband/uverbs*",
        caution="rdma-core's udev rules do the same at every boot",
    )
