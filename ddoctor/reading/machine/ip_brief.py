"""`ip -br addr`: a line for each network interface."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.evidence.network import Address, Network
from ddoctor.reading.machine.interfaces import kind_of, network_of
from ddoctor.reading.machine.kind import Kind

# The operational states of the kernel, include/uapi/linux/if.h.
STATES = r"UNKNOWN|NOTPRESENT|DOWN|LOWERLAYERDOWN|TESTING|DORMANT|UP"
ADDRESS = re.compile(r"([\da-fA-F.:]{2,45})(?: peer [\da-fA-F.:]{2,45})?/(\d{1,3})")
LINE = re.compile(
    rf"^(?P<name>[^\s@<]{{1,20}})(?:@(?P<link>\S{{1,20}}))? {{1,20}}(?P<state>{STATES})"
    r"(?: {1,20}(?P<addresses>[\da-fA-F.:]{2,45}(?: peer |/)[^<>]{0,2000}))?\s{0,20}$"
)
OFF = ("DOWN", "NOTPRESENT")
CARRIES = ("UP", "UNKNOWN")
"""Loopback and tunnels have no carrier, and are UNKNOWN."""


def _read(lines: Sequence[str]) -> Iterator[Network]:
    found = [row for line in lines if (row := LINE.match(line))]
    # ip -br link prints no addresses, and has the same states.
    if not any(row["addresses"] for row in found):
        return
    yield from network_of(
        [
            {
                "name": row["name"],
                "kind": "loopback" if row["name"] == "lo" else _kind(row["name"], row["link"]),
                "up": row["state"] not in OFF,
                "running": row["state"] in CARRIES,
                "mtu": 0,
                "addresses": [
                    Address(address=address, prefix=int(prefix))
                    for address, prefix in ADDRESS.findall(row["addresses"] or "")
                ],
            }
            for row in found
        ],
        "ip -br addr",
    )


def _kind(name: str, link: str | None) -> str:
    # The type of the link is not printed; names of IPoIB are the driver's.
    return "infiniband" if re.match(r"ib(?:\d|p|s|v)", name) else kind_of(name, link or "")


KIND = Kind(
    name="ip -br addr",
    holds=("lo  ",),
    begins=re.compile(rf"^lo {{2,20}}(?:{STATES}) {{1,20}}\d"),
    goes_on=LINE,
    read=_read,
    command=re.compile(
        r"(?:sudo )?ip (?:-\w{1,10} ){0,3}-br?(?:ief)? (?:-\w{1,10} ){0,3}a(?:ddr)?\b"
    ),
)
