"""GPUs through NVML. Each field is guarded separately, so that one refusal loses no other field."""

from __future__ import annotations

from pathlib import Path

from ddoctor import knowledge
from ddoctor.collect.holders import holders
from ddoctor.collect.interconnect import fabric, nvlinks, pcie_link, peers
from ddoctor.collect.nvml import NvmlDevice, bus_id_of, error_name, session
from ddoctor.evidence.gpus import Gpu, GpuProcess, Gpus
from ddoctor.evidence.known_hardware import NvmlNames
from ddoctor.evidence.section import Unseen
from ddoctor.proc.files import number

RECOVERY_ACTION_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which the pynvml of older releases does not name."""
COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive_process"}


def gpus(root: Path = Path("/")) -> Gpus:
    """Every visible GPU."""
    import pynvml

    with session():
        unseen: list[Unseen] = []
        found = [_device(index, unseen) for index in range(pynvml.nvmlDeviceGetCount())]
        devices = [one for one in found if isinstance(one, NvmlDevice)]
        lost = [one for one in found if isinstance(one, Gpu)]
        processes = holders([_processes(device) for device in devices])
        seen = [_gpu(*pair, root) for pair in zip(devices, processes, strict=True)]
        return Gpus(
            driver=pynvml.nvmlSystemGetDriverVersion(),
            cuda=_cuda(),
            gpus=tuple(sorted((*seen, *lost), key=lambda gpu: gpu.index)),
            peers=peers([device for device in devices if not device.lost]),
            unseen=(*unseen, *(row for device in devices for row in device.unseen)),
        )


def _device(index: int, unseen: list[Unseen]) -> NvmlDevice | Gpu | None:
    """A device to query, the remains of a lost one, or None if access is denied."""
    import pynvml

    try:
        return NvmlDevice(index, pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        name = error_name(error.value)
        if error.value != pynvml.NVML_ERROR_NO_PERMISSION:
            return _lost(index, name)
        unseen.append(Unseen(what=f"GPU {index}", why=name))
        return None


def _lost(index: int, error: str, bus_id: str = "") -> Gpu:
    return Gpu(
        index=index, name="", bus_id=bus_id, memory_total=0, memory_used=0, lost=True, error=error
    )


def _cuda() -> tuple[int, int] | None:
    import pynvml

    try:
        number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    except pynvml.NVMLError:
        return None
    return number // 1000, number % 1000 // 10


def _gpu(device: NvmlDevice, processes: tuple[GpuProcess, ...] | None, root: Path) -> Gpu:
    import pynvml

    ask = device.ask
    bus_id = bus_id_of(ask("nvmlDeviceGetPciInfo"))
    name = ask("nvmlDeviceGetName")
    memory = ask("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2) or ask("nvmlDeviceGetMemoryInfo")
    if device.lost:
        return _lost(device.index, device.lost, bus_id)
    utilisation = ask("nvmlDeviceGetUtilizationRates")
    ecc = ask("nvmlDeviceGetEccMode")
    remapped = ask("nvmlDeviceGetRemappedRows")
    fabric_state, fabric_status, fabric_trouble = fabric(device)
    mig = ask("nvmlDeviceGetMigMode")
    mode = ask("nvmlDeviceGetComputeMode")
    errors, volatile, aggregate = "nvmlDeviceGetTotalEccErrors", 0, 1
    return Gpu(
        index=device.index,
        uuid=ask("nvmlDeviceGetUUID") or "",
        name=name or "",
        bus_id=bus_id,
        capability=ask("nvmlDeviceGetCudaComputeCapability"),
        memory_total=memory.total if memory else 0,
        memory_used=memory.used if memory else 0,
        memory_reserved=getattr(memory, "reserved", 0),
        processes=processes,
        utilisation=None if utilisation is None else utilisation.gpu,
        performance_state=ask("nvmlDeviceGetPerformanceState"),
        sm_clock=ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        sm_clock_maximum=ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
        memory_clock=ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        memory_clock_maximum=ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM),
        throttle_reasons=clocks_limited_by(device),
        power=_watts(ask("nvmlDeviceGetPowerUsage")),
        power_limit=_watts(ask("nvmlDeviceGetPowerManagementLimit")),
        power_default=_watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        temperature=ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        temperature_slowdown=ask(
            "nvmlDeviceGetTemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        ecc_enabled=None if ecc is None else bool(ecc[0]),
        ecc_uncorrected_volatile=ask(errors, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile),
        ecc_uncorrected_aggregate=ask(errors, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, aggregate),
        ecc_corrected_volatile=ask(errors, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile),
        rows_remapped=None if remapped is None else remapped[1],
        remap_pending=_flag(ask("nvmlDeviceGetRetiredPagesPendingStatus"))
        if remapped is None
        else bool(remapped[2]),
        remap_failed=None if remapped is None else bool(remapped[3]),
        recovery_action=_recovery_action(device),
        pcie=pcie_link(device, bus_id, root),
        nvlinks=nvlinks(device),
        fabric_state=fabric_state,
        fabric_status=fabric_status,
        fabric_trouble=fabric_trouble,
        mig=None if mig is None else bool(mig[0]),
        compute_mode=COMPUTE_MODES.get(mode, ""),
        persistence=_flag(ask("nvmlDeviceGetPersistenceMode")),
        numa_node=number(root / "sys/bus/pci/devices" / bus_id / "numa_node"),
        lost=bool(device.lost),
        error=device.lost,
    )


def clocks_limited_by(device: NvmlDevice) -> tuple[str, ...] | None:
    """The current reasons for limited clocks; None: not reported."""
    reasons = device.ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:
        reasons = device.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    if reasons is None:
        return None
    names = knowledge.load(NvmlNames).throttle_reasons
    return tuple(name for bit, name in names if reasons & bit)


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _processes(device: NvmlDevice) -> list[tuple[int, int | None]] | None:
    """Each pid with its bytes on this device."""
    compute = device.ask("nvmlDeviceGetComputeRunningProcesses")
    if compute is None:
        compute = device.ask("nvmlDeviceGetComputeRunningProcesses_v2")
    if compute is None:
        return None
    graphics = device.ask("nvmlDeviceGetGraphicsRunningProcesses") or ()
    return list({row.pid: (row.pid, row.usedGpuMemory) for row in (*graphics, *compute)}.values())


def _recovery_action(device: NvmlDevice) -> str | None:
    values = device.ask("nvmlDeviceGetFieldValues", [RECOVERY_ACTION_FIELD])
    if values is None or values[0].nvmlReturn != 0:
        return None
    action: int = values[0].value.uiVal
    names = knowledge.load(NvmlNames).recovery_actions
    return names[action] if action < len(names) else f"action {action}"


COLLECTORS = (gpus,)
