"""`ibstat` and `ibv_devinfo`: RDMA devices and their ports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddoctor.evidence.network import Rdma, RdmaDevice, RdmaPort
from ddoctor.reading.machine.kind import Kind, decimal

CA = re.compile(r"^CA '(?P<name>[\w.-]{1,60})'$")
HCA = re.compile(r"^hca_id:\s+(?P<name>[\w.-]{1,60})$")
PORT = re.compile(r"^\s+(?:Port (\d{1,3}):|port:\s+(\d{1,3}))$")
FIELD = re.compile(r"^\s+(?P<name>[A-Za-z][\w ]{1,40}):\s*(?P<value>\S.{0,100})?$")

# Of ibstat, as the kernel's sysfs names them; ibv_devinfo has PORT_ before the same names.
STATES = {"Down": "DOWN", "Initializing": "INIT", "Armed": "ARMED", "Active": "ACTIVE"}


def _read(lines: Sequence[str]) -> Iterator[Rdma]:
    devices: list[dict[str, Any]] = []
    for line in lines:
        if head := CA.match(line) or HCA.match(line):
            devices.append({"name": head["name"], "ports": []})
        elif port := PORT.match(line):
            devices[-1]["ports"].append({"number": int(port[1] or port[2])})
        elif field := FIELD.match(line):
            name, value = field["name"].lower(), field["value"] or ""
            _add(devices[-1], name, value)
    yield Rdma(
        devices=tuple(
            RdmaDevice(
                **{**device, "ports": tuple(_port(port) for port in device["ports"])},
            )
            for device in devices
        )
    )


def _add(device: dict[str, Any], name: str, value: str) -> None:
    if not device["ports"]:
        if name in ("ca type", "board_id"):
            device["board"] = value
        elif name in ("firmware version", "fw_ver"):
            device["firmware"] = value
        return
    port = device["ports"][-1]
    match name:
        case "state":
            told = value.partition(" ")[0].removeprefix("PORT_")
            port["state"] = STATES.get(told, told)
        case "physical state":
            port["physical_state"] = value
        case "phys_state":
            port["physical_state"] = {"LINK_UP": "LinkUp"}.get(value.partition(" ")[0], "")
        case "rate":
            port["rate"] = decimal(value)
        case "link layer" | "link_layer":
            port["link_layer"] = value


def _port(fields: dict[str, Any]) -> RdmaPort:
    if "state" not in fields:
        raise ValueError("a port without a state: cut off")
    return RdmaPort(**fields)


KIND = Kind(
    name="ibstat",
    holds=("ca '",),
    begins=CA,
    goes_on=re.compile(rf"{CA.pattern}|^\s+\S[^:]{{0,60}}:"),
    read=_read,
)
DEVINFO = Kind(
    name="ibv_devinfo",
    holds=("hca_id:",),
    begins=HCA,
    goes_on=re.compile(rf"{HCA.pattern}|^\s+\S[^:]{{0,60}}:"),
    read=_read,
)
