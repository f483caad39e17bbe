"""A rank or a host never joins, and all other ranks wait for it.

The process group forms once every rank has joined. One host may lack its launcher, a rank may be
stopped on its way, or a container may still pull its image. The other ranks then wait silently for
minutes, and fail with a timeout that does not name the missing rank.

Symptoms: "waiting for clients", "Timed out after 901 seconds waiting for clients. 7/8 clients
joined", or torchrun that prints nothing at all.

To fix it, start the same command on the missing host, and check that it reaches the rendezvous
endpoint.
"""

# Above 150 lines: it judges hosts that do not connect, ranks that do not join, and a live run that
# waits.

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis import live_ranks
from ddoctor.analysis.endings import ranks
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.joining import HostJoining, Joining, JoiningRank
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("rank-stuck-outside-collective",)
OF_MACHINE = True

HELD = {state: f"is {why}" for state, why in live_ranks.HELD.items()} | {
    "silent": "no longer responds: stopped, disconnected, or its host is down",
}
FEW = 8
"""The most names in one sentence."""
# On some ranks the import of torch from a shared disk takes longer.
USUAL_SECONDS = 60.0


def never_came(joinings: tuple[Joining, ...]) -> Iterator[Finding]:
    for joining in joinings:
        missing = [one for one in joining.ranks if not one.came]
        came = [one for one in joining.ranks if one.came]
        if missing:
            yield _finding(
                f"{_ranks(missing)} of {joining.world_size} did not reach {joining.endpoint} "
                f"within {joining.limit:.0f} s{_known(missing)}; {len(came)} did, from "
                f"{_hosts(came)}",
                missing,
                joining.limit,
            )


def never_joined(
    joinings: tuple[Joining, ...], probe_runs: tuple[ProbeRuns, ...]
) -> Iterator[Finding]:
    """They reached the endpoint, but did not join the process group."""
    if any(run.outcome == "crashed" for section in probe_runs for run in section.runs):
        return
    for joining in joinings:
        waiting = [one for one in joining.ranks if one.came and one.joined is False]
        held = [one for one in waiting if one.status in HELD]
        others = [one for one in waiting if one not in held]
        at = f"; the other ranks were at '{others[0].last}'" if others else ""
        if held:
            yield _finding(
                f"{_ranks(held)} of {joining.world_size} did not join the process group within "
                f"{joining.limit:.0f} s{_known(held)}{at}",
                held,
                joining.limit,
            )


def hosts(host_joinings: tuple[HostJoining, ...]) -> Iterator[Finding]:
    for joining in host_joinings:
        if joining.came and len(joining.came) < joining.expected:
            yield _hosts_missing(joining)


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    """No rank leaves init_process_group before all ranks have called it."""
    away = live.world - len(live.ranks)
    if away <= 0 or live.gone or not live.hung:
        return
    if any(rank.doing != "joining" or rank.seen.age_seconds < USUAL_SECONDS for rank in live.ranks):
        return
    several = away > 1
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{ranks(rank.rank for rank in live.ranks)} of {live.job} "
            f"{'wait' if len(live.ranks) > 1 else 'waits'} {live.ranks[0].where}, which ends when "
            f"all {live.world} ranks join; ddoctor did not see {away} of them, on other hosts: "
            f"{'one of these' if several else 'it'} does not run, or cannot reach this host"
        ),
        evidence=tuple(
            Observation(
                name=f"time since its start, rank {rank.rank}",
                value=round(rank.seen.age_seconds),
                unit="s",
            )
            for rank in live.ranks[:FEW]
        ),
        fixes=(
            Fix(
                summary="attach on the other hosts to see whether their ranks run, and where",
                paste="ddoctor attach --bundle look-$(hostname).json",
                caution="then `ddoctor diagnose look-*.json` judges all hosts together",
            ),
            Fix(
                summary="run the probes instead of the training: they name the missing ranks",
                paste="torchrun … -m ddoctor.probe  # launched as the training",
            ),
        ),
    )


def _hosts_missing(joining: HostJoining) -> Finding:
    given = {one.node_rank for one in joining.callers}
    absent = sorted(set(range(joining.expected)) - given)
    numbered = bool(given) and None not in given
    who = f"node rank {_some([str(rank) for rank in absent])}" if numbered else "the other hosts"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"{len(joining.came)} of {joining.expected} hosts reached {joining.endpoint} within "
            f"{joining.limit:.0f} s: {_some(joining.came)}; {who} did not"
        ),
        evidence=(
            Observation(
                name="hosts that connected",
                value=len(joining.came),
                expected=joining.expected,
                source="store",
            ),
            *(
                Observation(
                    name=f"{one.host} resolves the endpoint to",
                    value=", ".join(one.endpoint_addresses) or "nothing",
                    source=f"its own address towards it: {one.address or 'none'}",
                )
                for one in joining.callers[:FEW]
            ),
        ),
        fixes=(_start_there(joining.endpoint),),
    )


def _finding(because: str, ranks: Sequence[JoiningRank], limit: float) -> Finding:
    known = sorted({one.host for one in ranks if one.host})
    held = next((one for one in ranks if one.status in HELD and one.pid), None)
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=because,
        evidence=(
            Observation(name="time waited", value=limit, unit="s"),
            *(
                Observation(
                    name=f"last step of rank {one.rank}",
                    value=one.last,
                    source=f"on {one.host}, pid {one.pid}",
                )
                for one in list(ranks)[:FEW]
                if one.last
            ),
        ),
        where=Where(hosts=tuple(known), ranks=tuple(one.rank for one in ranks)),
        fixes=(_look_at(held) if held is not None else _find(ranks),),
    )


def _known(ranks: Sequence[JoiningRank]) -> str:
    first = next((one for one in ranks if one.status), None)
    if first is None:
        hosts = sorted({one.host for one in ranks if one.host})
        return f", though torchrun runs on {_some(hosts)}" if hosts else ""
    who = f"rank {first.rank} (pid {first.pid} on {first.host})"
    return f": {who} {HELD.get(first.status, f'is {first.status}')}, at '{first.last}'"


def _look_at(one: JoiningRank) -> Fix:
    return Fix(
        summary=f"on {one.host}, find out what stops processes; SIGCONT resumes a process",
        paste="ps -eo pid,ppid,stat,user,args | awk '$3 ~ /[TD]/'\nkill -CONT PID",
    )


def _find(ranks: Sequence[JoiningRank]) -> Fix:
    hosts = sorted({one.host for one in ranks if one.host})
    where = f"on {_some(hosts)}" if hosts else "on each host not named above"
    return Fix(
        summary=f"{where}, check that its processes run and what they wait for",
        paste="pgrep -af 'torchrun|torch.distributed.run|ddoctor.probe'\n"
        "py-spy dump --pid $(pgrep -f ddoctor.probe | tail -1)",
    )


def _start_there(endpoint: str) -> Fix:
    host, _, port = endpoint.rpartition(":")
    return Fix(
        summary="on each missing host, start the same command and test the connection",
        paste=f"getent ahosts {host}\n"
        f"ip route get $(getent ahosts {host} | awk 'NR==1{{print $1}}')\n"
        f"timeout 3 bash -c '</dev/tcp/{host}/{port}' && echo open",
        caution="the port is open only while another host waits there",
    )


def _ranks(joining: Sequence[JoiningRank]) -> str:
    more = f" and {len(joining) - FEW} more" if len(joining) > FEW else ""
    return ranks(one.rank for one in joining[:FEW]) + more


def _hosts(ranks: Sequence[JoiningRank]) -> str:
    return _some(sorted({one.host for one in ranks if one.host}))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
