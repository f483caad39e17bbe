"""What nvidia-smi prints, in the layouts of drivers 470 to 580."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Widths of the three columns.
LAYOUTS: Mapping[str, tuple[int, int, int]] = {
    "470.57.02": (31, 22, 22),
    "535.104.05": (41, 22, 22),
    "550.54.15": (41, 24, 22),
    "580.95.05": (41, 24, 22),
}
CUDA = {"470.57.02": "11.4", "535.104.05": "12.2", "550.54.15": "12.4", "580.95.05": "13.0"}


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU; the defaults are an idle A100."""

    name: str = "NVIDIA A100-SXM4-80GB"
    total: int = 81920
    used: int = 4
    busy: str = "0%"
    state: int = 0
    heat: int = 31
    power: str = "61W / 400W"
    fan: str = "N/A"
    ecc: str = "0"
    mig: str = "Disabled"
    mode: str = "Default"
    persistence: str = "On"
    bus: str = ""

    def at(self, index: int) -> str:
        return self.bus or f"00000000:{0x19 + 0x11 * index:02X}:00.0"


def table(
    driver: str, cards: Sequence[Card], processes: Sequence[tuple[int, int, str, int]] = ()
) -> str:
    """The table; processes: GPU, pid, name and MiB."""
    left, middle, right = LAYOUTS[driver]
    width = left + middle + right + 2

    def row(*cells: str) -> str:
        first, second, third = cells
        name = first if len(first) <= left else first[:left]
        return f"|{name:<{left}}|{second:>{middle}}|{third:>{right}}|"

    line = f"+{'-' * left}+{'-' * middle}+{'-' * right}+"
    head = f" NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: {CUDA[driver]}"
    rows = [
        "Tue Aug 26 15:49:52 2025       ",
        f"+{'-' * width}+",
        f"|{head:<{width}}|",
        f"|{'-' * left}+{'-' * middle}+{'-' * right}+",
        row(" GPU  Name        Persistence-M", " Bus-Id        Disp.A ", " Volatile Uncorr. ECC "),
        row(" Fan  Temp  Perf  Pwr:Usage/Cap", "         Memory-Usage ", " GPU-Util  Compute M. "),
        row("", "", "               MIG M. "),
        f"|{'=' * left}+{'=' * middle}+{'=' * right}|",
    ]
    room = left - 12
    for index, card in enumerate(cards):
        name = card.name if len(card.name) <= room else card.name[: room - 3] + "..."
        rows += [
            row(
                f"   {index}  {name:<{room}} {card.persistence:>3}  ",
                f" {card.at(index)} Off ",
                f"{card.ecc} ",
            ),
            row(
                f"{card.fan:>4}   {card.heat}C    P{card.state}    {card.power} ",
                f"{card.used}MiB / {card.total}MiB ",
                f"{card.busy}  {card.mode:>11} ",
            ),
            row("", "", f"{card.mig} "),
            line,
        ]
    rows += [
        " " * (width + 2),
        f"+{'-' * width}+",
        f"|{' Processes:':<{width}}|",
        f"|{'  GPU   GI   CI        PID   Type   Process name       GPU Memory':<{width}}|",
        f"|{'        ID   ID                                       Usage':<{width}}|",
        f"|{'=' * width}|",
    ]
    for gpu, pid, name, memory in processes:
        text = f"    {gpu}   N/A  N/A  {pid:>9}      C   {name:<30} {memory:>6}MiB "
        rows.append(f"|{text:<{width}}|")
    if not processes:
        rows.append(f"|{'  No running processes found':<{width}}|")
    return "\n".join([*rows, f"+{'-' * width}+", ""])


SOUND = {
    "Product Name": "NVIDIA H100 80GB HBM3",
    "Persistence Mode": "Enabled",
    "MIG Mode/Current": "Disabled",
    "MIG Mode/Pending": "Disabled",
    "GPU UUID": "GPU-00000000-0000-0000-0000-000000000000",
    "Minor Number": "3",
    "GPU Reset Status/Reset Required": "No",
    "GPU Reset Status/Drain and Reset Recommended": "No",
    "PCI/Bus Id": "00000000:19:00.0",
    "PCI/GPU Link Info/PCIe Generation/Max": "5",
    "PCI/GPU Link Info/PCIe Generation/Current": "5",
    "PCI/GPU Link Info/PCIe Generation/Device Max": "5",
    "PCI/GPU Link Info/Link Width/Max": "16x",
    "PCI/GPU Link Info/Link Width/Current": "16x",
    "PCI/Replays Since Reset": "0",
    "Fan Speed": "N/A",
    "Performance State": "P0",
    "Clocks Event Reasons/Idle": "Active",
    "Clocks Event Reasons/Applications Clocks Setting": "Not Active",
    "Clocks Event Reasons/SW Power Cap": "Not Active",
    "Clocks Event Reasons/HW Slowdown": "Not Active",
    "Clocks Event Reasons/HW Slowdown/HW Thermal Slowdown": "Not Active",
    "Clocks Event Reasons/HW Slowdown/HW Power Brake Slowdown": "Not Active",
    "Clocks Event Reasons/Sync Boost": "Not Active",
    "Clocks Event Reasons/SW Thermal Slowdown": "Not Active",
    "Clocks Event Reasons Counters/SW Thermal Slowdown": "644864106 us",
    "FB Memory Usage/Total": "81559 MiB",
    "FB Memory Usage/Reserved": "551 MiB",
    "FB Memory Usage/Used": "1 MiB",
    "FB Memory Usage/Free": "81007 MiB",
    "BAR1 Memory Usage/Total": "131072 MiB",
    "Compute Mode": "Default",
    "Utilization/Gpu": "0 %",
    "Utilization/Memory": "0 %",
    "ECC Mode/Current": "Enabled",
    "ECC Errors/Volatile/SRAM Correctable": "0",
    "ECC Errors/Volatile/SRAM Uncorrectable Parity": "0",
    "ECC Errors/Volatile/SRAM Uncorrectable SEC-DED": "0",
    "ECC Errors/Volatile/DRAM Correctable": "0",
    "ECC Errors/Volatile/DRAM Uncorrectable": "0",
    "ECC Errors/Aggregate/SRAM Correctable": "0",
    "ECC Errors/Aggregate/DRAM Correctable": "177",
    "ECC Errors/Aggregate/DRAM Uncorrectable": "2",
    "Retired Pages/Pending Page Blacklist": "N/A",
    "Remapped Rows/Correctable Error": "1",
    "Remapped Rows/Uncorrectable Error": "2",
    "Remapped Rows/Pending": "No",
    "Remapped Rows/Remapping Failure Occurred": "No",
    "Temperature/GPU Current Temp": "33 C",
    "Temperature/GPU T.Limit Temp": "54 C",
    "Temperature/GPU Slowdown Temp": "89 C",
    "GPU Power Readings/Power Draw": "71.03 W",
    "GPU Power Readings/Current Power Limit": "700.00 W",
    "GPU Power Readings/Default Power Limit": "700.00 W",
    "Clocks/SM": "345 MHz",
    "Clocks/Memory": "2619 MHz",
    "Max Clocks/SM": "1980 MHz",
    "Max Clocks/Memory": "2619 MHz",
    "Fabric/State": "Completed",
    "Fabric/Status": "Success",
    "Processes": "None",
}
"""A GPU in `nvidia-smi -q`: names by headings, and values."""


def query(*gpus: Mapping[str, str], driver: str = "550.54.15", attached: int | None = None) -> str:
    """The text of `nvidia-smi -q`; each GPU as ``SOUND`` with changes."""
    lines = [
        "",
        "==============NVSMI LOG==============",
        "",
        f"{'Timestamp':<42}: Tue Aug 26 15:49:52 2025",
        f"{'Driver Version':<42}: {driver}",
        f"{'CUDA Version':<42}: {CUDA.get(driver, '12.4')}",
        "",
        f"{'Attached GPUs':<42}: {len(gpus) if attached is None else attached}",
    ]
    for index, changes in enumerate(gpus):
        lines.append(f"GPU 00000000:{0x19 + 0x11 * index:02X}:00.0")
        above: list[str] = []
        for path, value in (SOUND | dict(changes)).items():
            *headings, name = path.split("/")
            same = 0
            while same < min(len(above), len(headings)) and above[same] == headings[same]:
                same += 1
            lines += [
                "    " * (depth + 1) + headings[depth]
                for depth in range(same, len(headings))
                if "/".join(headings[: depth + 1]) not in SOUND
            ]
            above = headings
            indent = "    " * (len(headings) + 1)
            lines.append(f"{indent + name:<42}: {value}")
        lines.append("")
    return "\n".join(lines)


def csv(columns: str, *rows: str) -> str:
    """The text of `nvidia-smi --query-gpu=… --format=csv`."""
    return "\n".join([columns, *rows, ""])
