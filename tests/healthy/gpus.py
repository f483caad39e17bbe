"""8 sound and idle H100s on NVSwitch, four at each socket."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import msgspec

from ddoctor.evidence.gpus import Gpu, Gpus, KernelLog, NvLink, Nvml, PcieLink, PeerPath
from tests.healthy.host import HOST

MIB = 2**20
BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")

GPUS = tuple(
    Gpu(
        index=index,
        uuid=f"GPU-00000000-0000-0000-0000-{index:012}",
        name="NVIDIA H100 80GB HBM3",
        bus_id=f"0000:{bus}:00.0",
        capability=(9, 0),
        memory_total=81559 * MIB,
        memory_used=1 * MIB,
        memory_reserved=558 * MIB,
        processes=(),
        utilisation=0,
        performance_state=0,
        sm_clock=345,
        sm_clock_maximum=1980,
        memory_clock=2619,
        memory_clock_maximum=2619,
        throttle_reasons=("gpu_idle",),
        power=71.0,
        power_limit=700.0,
        power_default=700.0,
        temperature=31,
        temperature_slowdown=89,
        ecc_enabled=True,
        ecc_uncorrected_volatile=0,
        ecc_uncorrected_aggregate=0,
        ecc_corrected_volatile=0,
        rows_remapped=0,
        remap_pending=False,
        remap_failed=False,
        recovery_action="none",
        pcie=PcieLink(
            generation=5,
            width=16,
            maximum_generation=5,
            maximum_width=16,
            replays=0,
            upstream=(f"0000:{int(bus, 16) - 1:02x}:01.0",),
        ),
        nvlinks=tuple(NvLink(index=n, active=True, remote="switch", errors=0) for n in range(18)),
        fabric_state="completed",
        mig=False,
        compute_mode="default",
        persistence=True,
        numa_node=index // 4,
    )
    for index, bus in enumerate(BUSES)
)

SECTIONS = (
    Nvml(
        host=HOST,
        state="ok",
        module_version="570.86.15",
        library_version="570.86.15",
        device_nodes=tuple(f"/dev/nvidia{index}" for index in range(8)),
        pci_gpus=tuple(gpu.bus_id for gpu in GPUS),
    ),
    Gpus(
        host=HOST,
        driver="570.86.15",
        cuda=(12, 8),
        gpus=GPUS,
        peers=tuple(
            PeerPath(a=a, b=b, path="nvlink", read="ok") for a, b in combinations(range(8), 2)
        ),
    ),
    KernelLog(host=HOST, source="/dev/kmsg"),
)


def otherwise(changed: Mapping[int, Mapping[str, object]], *, host: str = HOST) -> Gpus:
    """The same node, with some fields of some of its GPUs otherwise; index -1: of all of them."""
    gpus = tuple(
        msgspec.structs.replace(gpu, **{**changed.get(-1, {}), **changed.get(gpu.index, {})})
        for gpu in GPUS
    )
    return Gpus(host=host, driver="570.86.15", cuda=(12, 8), gpus=gpus)
