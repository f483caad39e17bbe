"""Settings that differ between hosts which should share them: the minority against the majority."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddoctor.analysis.host_settings import HostSetting, Settings, without_names


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One setting that hosts do not share."""

    setting: HostSetting
    hosts: Mapping[str, tuple[str, ...]]
    """The hosts by their value, the most common value first."""

    @property
    def usual(self) -> str | None:
        """The value of more than half of the hosts; None: there is no majority."""
        value, hosts = next(iter(self.hosts.items()))
        return value if 2 * len(hosts) > self.total else None

    @property
    def total(self) -> int:
        """The number of hosts with a known value."""
        return sum(map(len, self.hosts.values()))


def drifts(every: Sequence[Settings]) -> Iterator[Drift]:
    """The settings that differ between hosts; unknown values are left out."""
    known = dict.fromkeys(setting for one in every for setting in one.values)
    names = frozenset[str]().union(*(one.names for one in every))
    for setting in known:
        values = {one.host: one.get(setting) for one in every}
        hosts = _grouped(values)
        if len(hosts) > 1 and setting.own_words:
            # A path may contain the name of each host, or of one host on all others.
            general = {
                host: value and without_names(value, names) for host, value in values.items()
            }
            hosts = _grouped(general)
        total = sum(map(len, hosts.values()))
        by_design = setting.own_words and total > 2 and len(hosts) == total
        if len(hosts) > 1 and not by_design:
            yield Drift(setting=setting, hosts=hosts)


def _grouped(values: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for host, value in values.items():
        if value is not None:
            groups.setdefault(value, []).append(host)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return {value: tuple(hosts) for value, hosts in ordered}
