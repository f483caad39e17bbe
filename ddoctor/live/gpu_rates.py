"""The rates of each GPU over PCIe and NVLink, for a moment at the end of the sampling."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from statistics import mean

from ddoctor.collect.nvml import NvmlDevice, session
from ddoctor.evidence.live import GpuRates, GpuTraffic

# Longer than most steps; PCIe is sampled this often in it, 20 ms per time and direction (nvml.h).
SECONDS, ROUNDS = 0.5, 3
KIB = 2**10
Moved = tuple[int | None, int | None]
"""KiB that a GPU received and sent, or KiB/s; None: it does not report it."""


def gpu_rates() -> GpuRates:
    """Return the rates of all GPUs that the driver shows.

    Raises:
        CannotSee: there is no NVIDIA driver, or it does not answer.
    """
    with session():
        devices = list(_devices())
        began, before = time.monotonic(), [_over_nvlink(one) for one in devices]
        over_pcie = [[_over_pcie(one) for one in devices] for _ in range(ROUNDS)]
        time.sleep(max(0.0, began + SECONDS - time.monotonic()))
        seconds, after = time.monotonic() - began, [_over_nvlink(one) for one in devices]
    return GpuRates(
        gpus=tuple(
            GpuTraffic(
                index=device.index,
                pcie_received=_mean([moved[0] for moved in row]),
                pcie_sent=_mean([moved[1] for moved in row]),
                nvlink_received=_rate(old[0], new[0], seconds),
                nvlink_sent=_rate(old[1], new[1], seconds),
            )
            for device, old, new, *row in zip(devices, before, after, *over_pcie, strict=True)
            if not device.lost
        )
    )


def _devices() -> Iterator[NvmlDevice]:
    import pynvml

    for index in range(pynvml.nvmlDeviceGetCount()):
        with suppress(pynvml.NVMLError):
            yield NvmlDevice(index, pynvml.nvmlDeviceGetHandleByIndex(index))


def _over_pcie(device: NvmlDevice) -> Moved:
    """Return the rates now."""
    import pynvml

    received, sent = pynvml.NVML_PCIE_UTIL_RX_BYTES, pynvml.NVML_PCIE_UTIL_TX_BYTES
    rate = "nvmlDeviceGetPcieThroughput"
    return device.ask(rate, received), device.ask(rate, sent)


def _over_nvlink(device: NvmlDevice) -> Moved:
    """Return the amounts so far, over all its links."""
    import pynvml

    def counted(field: int) -> int | None:
        fields = [(field, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
        every = device.ask("nvmlDeviceGetFieldValues", fields) or ()
        told = [int(one.value.ullVal) for one in every if one.nvmlReturn == pynvml.NVML_SUCCESS]
        return sum(told) if told else None

    received = counted(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
    return received, counted(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)


def _mean(told: Sequence[int | None]) -> float | None:
    known = [one for one in told if one is not None]
    return round(mean(known) / KIB, 1) if known else None


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None or after < before:
        return None
    return round((after - before) / KIB / seconds, 1)
