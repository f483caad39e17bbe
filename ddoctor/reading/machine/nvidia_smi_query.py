"""`nvidia-smi -q`: all that the driver knows about each GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from ddoctor.evidence.gpus import FabricState, Gpu, GpuProcess, Gpus, PcieLink
from ddoctor.reading.machine.kind import Kind, bus_id, decimal, flag, known, mebibytes, number

LINE = re.compile(r"^(?P<indent> *)(?P<name>[^:]{1,80}?) *(?: : *(?P<value>.{0,500}))?$")
GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")

Values = Mapping[tuple[str, str], str]
"""Values by heading and name in lower case, such as ``("ecc mode", "current")``.

A value without a heading has an empty name; one of a part of a heading also has ``part / name``.
"""

# Drivers before 535 call the events throttle reasons.
REASONS = ("clocks event reasons", "clocks throttle reasons")
REASON_NAMES = {
    "idle": "gpu_idle",
    "applications clocks setting": "applications_clocks_setting",
    "sw power cap": "sw_power_cap",
    "hw slowdown": "hw_slowdown",
    "sync boost": "sync_boost",
    "sw thermal slowdown": "sw_thermal_slowdown",
    "hw thermal slowdown": "hw_thermal_slowdown",
    "hw power brake slowdown": "hw_power_brake_slowdown",
    "display clock setting": "display_clock_setting",
}
ACTIONS = {
    "none": "none",
    "reset": "gpu_reset",
    "gpu reset": "gpu_reset",
    "reboot": "node_reboot",
    "node reboot": "node_reboot",
    "drain p2p": "drain_p2p",
    "drain and reset": "drain_and_reset",
}
FABRIC_STATES = {"not started", "in progress", "completed", "not supported"}
FABRIC_HEALTH = {
    ("bandwidth", "degraded"): "degraded_bandwidth",
    ("route recovery in progress", "true"): "route_recovery",
    ("route unhealthy", "true"): "route_unhealthy",
    ("access timeout recovery", "true"): "access_timeout_recovery",
}
LAPTOP = re.compile(r"\b(?:Laptop|Max-Q|Mobile)\b")
COMPUTE_MODES = {"default", "exclusive_process", "prohibited"}


def _read(lines: Sequence[str]) -> Iterator[Gpus]:
    heads = [place for place, line in enumerate(lines) if GPU.match(line)]
    top = _values(lines[: heads[0] if heads else 0])
    attached = number(top.get(("attached gpus", ""), ""))
    # With -i there are fewer, and which number each has is not known.
    if not heads or attached != len(heads):
        return
    ends = [*heads[1:], len(lines)]
    cuda = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", top.get(("cuda version", ""), ""))
    yield Gpus(
        driver=top.get(("driver version", ""), ""),
        cuda=(int(cuda[1]), int(cuda[2])) if cuda else None,
        gpus=tuple(
            _gpu(index, lines[begins], _values(lines[begins + 1 : end]), lines[begins + 1 : end])
            for index, (begins, end) in enumerate(zip(heads, ends, strict=True))
        ),
    )


def _values(lines: Sequence[str]) -> Values:
    found: dict[tuple[str, str], str] = {}
    above: list[tuple[int, str]] = []
    for line in lines:
        if not (match := LINE.match(line)):
            continue
        indent, name = len(match["indent"]), match["name"].strip().lower()
        while above and above[-1][0] >= indent:
            above.pop()
        above.append((indent, name))
        if (value := match["value"]) is not None:
            heading, *inner = (one for _, one in above)
            # Some names come once for each part of a heading.
            for key in (" / ".join(inner[-2:]), "".join(inner[-1:])):
                found.setdefault((heading, key), known(value))
    return found


def _gpu(index: int, head: str, values: Values, lines: Sequence[str]) -> Gpu:
    def get(heading: str, *names: str) -> str:
        return next((told for one in names or ("",) if (told := values.get((heading, one)))), "")

    def power(*names: str) -> float | None:
        return decimal(get("gpu power readings", *names) or get("power readings", *names))

    name = get("product name")
    laptop = LAPTOP.search(name) is not None
    ecc, remapped = "ecc errors", "remapped rows"
    action = ACTIONS.get(get("gpu recovery action").lower())
    if action is None and flag(get("gpu reset status", "reset required")):
        action = "gpu_reset"
    pending = get(remapped, "pending") or get("retired pages", "pending page blacklist", "pending")
    ecc_mode = get("ecc mode", "current")
    state = get("fabric", "state").lower()
    status = get("fabric", "status")
    mode = get("compute mode").lower()
    return Gpu(
        index=index,
        uuid=get("gpu uuid"),
        name=name,
        bus_id=bus_id(head.removeprefix("GPU ")),
        memory_total=mebibytes(get("fb memory usage", "total")) or 0,
        memory_used=mebibytes(get("fb memory usage", "used")) or 0,
        memory_reserved=mebibytes(get("fb memory usage", "reserved")) or 0,
        processes=_processes(lines),
        utilisation=number(get("utilization", "gpu")),
        performance_state=number(get("performance state").removeprefix("P")),
        sm_clock=number(get("clocks", "sm")),
        sm_clock_maximum=number(get("max clocks", "sm")),
        memory_clock=number(get("clocks", "memory")),
        memory_clock_maximum=number(get("max clocks", "memory")),
        throttle_reasons=_reasons(values, laptop=laptop),
        power=power("power draw", "average power draw", "instantaneous power draw"),
        power_limit=power("current power limit", "power limit"),
        # The firmware of a laptop moves the limit between processor and GPU.
        power_default=None if laptop else power("default power limit"),
        temperature=number(get("temperature", "gpu current temp")),
        temperature_slowdown=number(get("temperature", "gpu slowdown temp")),
        ecc_enabled=flag(ecc_mode),
        ecc_uncorrected_volatile=_errors(values, ecc, "volatile", "uncorrectable", "double bit"),
        ecc_uncorrected_aggregate=_errors(values, ecc, "aggregate", "uncorrectable", "double bit"),
        ecc_corrected_volatile=_errors(values, ecc, "volatile", " correctable", "single bit"),
        rows_remapped=number(get(remapped, "uncorrectable error")),
        remap_pending=flag(pending),
        remap_failed=flag(get(remapped, "remapping failure occurred")),
        recovery_action=action,
        pcie=_pcie(values),
        fabric_state=cast(FabricState, state.replace(" ", "_")) if state in FABRIC_STATES else None,
        fabric_status="" if status.lower() == "success" else status.upper().replace(" ", "_"),
        fabric_trouble=tuple(
            trouble
            for (what, word), trouble in FABRIC_HEALTH.items()
            if get("fabric", what).lower() == word
        ),
        mig=flag(get("mig mode", "current")),
        compute_mode=mode if mode in COMPUTE_MODES else "",
        persistence=flag(get("persistence mode")),
    )


def _reasons(values: Values, *, laptop: bool) -> tuple[str, ...] | None:
    told = {name: value for (heading, name), value in values.items() if heading in REASONS}
    if not any(told.get(words) for words in REASON_NAMES):
        return None
    # A laptop on its battery has the power brake on.
    usual = {"hw power brake slowdown"} if laptop else set()
    return tuple(
        name
        for words, name in REASON_NAMES.items()
        if flag(told.get(words, "")) and words not in usual
    )


def _errors(values: Values, heading: str, since: str, *kinds: str) -> int | None:
    """The sum of the errors of a kind, or the total of drivers for GPUs before Ampere."""
    total = values.get((heading, f"{kinds[-1]} / total")) if since == "volatile" else None
    if total:
        return number(total)
    counts = [
        count
        for (one, name), value in values.items()
        if one == heading and name.startswith(f"{since} / ") and kinds[0] in name
        if (count := number(value)) is not None
    ]
    return sum(counts) if counts else None


def _pcie(values: Values) -> PcieLink | None:
    def get(*names: str) -> int | None:
        return number(values.get(("pci", " / ".join(names)), "").replace("x", ""))

    link = PcieLink(
        generation=get("pcie generation", "current"),
        width=get("link width", "current"),
        maximum_generation=get("pcie generation", "max"),
        maximum_width=get("link width", "max"),
        replays=get("replays since reset"),
    )
    return link if link != PcieLink() else None


def _processes(lines: Sequence[str]) -> tuple[GpuProcess, ...] | None:
    """The processes of a GPU; None: they are not listed."""
    told = [match for line in lines if (match := LINE.match(line)) is not None]
    names = [match["name"].strip().lower() for match in told]
    if "processes" not in names:
        return None
    rows: list[dict[str, str]] = []
    for name, match in zip(names, told, strict=True):
        if name == "process id":
            rows.append({})
        if rows:
            rows[-1][name] = known(match["value"] or "")
    return tuple(
        GpuProcess(
            pid=pid,
            memory=mebibytes(row.get("used gpu memory", "")),
            name=row.get("name", ""),
            holder="unknown",
        )
        for row in rows
        if (pid := number(row["process id"])) is not None
    )


KIND = Kind(
    name="nvidia-smi -q",
    holds=("nvsmi log",),
    begins=re.compile(r"^=+NVSMI LOG=+\s*$"),
    goes_on=re.compile(
        r"^(?: {4,}\S|GPU [0-9A-Fa-f]{4,8}:|(?:Timestamp|Driver Version|CUDA Version|Attached GPUs"
        r"|vGPU Driver Capability)\b)"
    ),
    read=_read,
)
