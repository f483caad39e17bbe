"""`ifconfig`: the network interfaces and their addresses, in both forms of net-tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any

from ddoctor.evidence.network import Address, InterfaceKind, Network
from ddoctor.reading.machine.interfaces import kind_of, network_of
from ddoctor.reading.machine.kind import Kind

# net-tools 2: `eth0: flags=4163<UP,…>  mtu 1500`. Before, and of BusyBox: `eth0      Link encap:…`.
NEW = r"(?P<new>[^\s<>]{1,20}): flags=\d{1,9}<(?P<flags>[A-Z0-9_,]{0,200})>  mtu (?P<mtu>\d{1,9})"
OLD = r"(?P<old>[^\s<>]{1,20}) {1,20}Link encap:(?P<link>\w{1,20})"
HEAD = re.compile(rf"^(?:{NEW}|{OLD})")
STATE = re.compile(
    r"^ {2,20}(?P<flags>[A-Z]{2,20}(?: [A-Z0-9]{2,20}){0,12}) {1,4}MTU:(?P<mtu>\d{1,9})"
)
LINK = re.compile(r"^\s{1,20}(?P<kind>infiniband|loop)\b")
V4 = re.compile(
    r"^\s{1,20}inet (?:addr:)?(?P<address>\d[\d.]{6,14})(?= ).{0,80}? "
    r"(?:netmask |Mask:)(?P<mask>\d[\d.]{6,14})"
)
V6 = re.compile(
    r"^\s{1,20}inet6 (?:addr: ?)?(?P<address>[\da-fA-F.:]{2,45})(?:/| {1,4}prefixlen )"
    r"(?P<prefix>\d{1,3})"
)
LATE = ("bridge", "local-bridge", "veth", "tunnel", "virtual")
KINDS: Mapping[str, InterfaceKind] = {
    "loop": "loopback",
    "Local": "loopback",
    "infiniband": "infiniband",
    "InfiniBand": "infiniband",
    "Point": "tunnel",
}


def _read(lines: Sequence[str]) -> Iterator[Network]:
    rows: list[dict[str, Any]] = []
    for line in lines:
        if head := HEAD.match(line):
            name = head["new"] or head["old"]
            kind = KINDS.get(head["link"] or "", kind_of(name))
            state = _state(head["flags"] or "", ",", head["mtu"] or "0")
            rows.append({"name": name, "kind": kind, "addresses": [], **state})
        elif told := STATE.match(line):
            rows[-1] |= _state(told["flags"], " ", told["mtu"])
        elif link := LINK.match(line):
            rows[-1]["kind"] = KINDS[link["kind"]]
        elif found := V4.match(line):
            prefix = IPv4Network(f"0.0.0.0/{found['mask']}").prefixlen
            rows[-1]["addresses"].append(Address(address=found["address"], prefix=prefix))
        elif found := V6.match(line):
            own = Address(address=found["address"], prefix=int(found["prefix"]))
            rows[-1]["addresses"].append(own)
    # It sorts by name; the kernel's order begins with the cards, which are there from the boot on.
    yield from network_of(sorted(rows, key=lambda row: row["kind"] in LATE), "ifconfig")


def _state(flags: str, separator: str, mtu: str) -> Mapping[str, Any]:
    told = flags.split(separator)
    return {"up": "UP" in told, "running": {"UP", "RUNNING"} <= {*told}, "mtu": int(mtu)}


KIND = Kind(
    name="ifconfig",
    # Without its digits, as forms of lines are: `flags=4163<` is `flags=<`.
    holds=("flags=<", "link encap:"),
    begins=HEAD,
    goes_on=re.compile(rf"{HEAD.pattern}|^\s{{2,}}\S"),
    read=_read,
    fewest=2,
)
