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

from ddoctor.analysis import live_ranks, log_events
from ddoctor.analysis.describe import few
from ddoctor.analysis.endings import ranks
from ddoctor.analysis.environment_fixes import connection_test
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.joining import HostJoining, Joining, JoiningRank
from ddoctor.evidence.log import Log
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.training import TrainingRun
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
                joining,
                missing,
                f"did not reach {joining.endpoint} within {joining.limit:.0f} s{_known(missing)}; "
                f"{len(came)} did, from {few(_hosts(came), FEW)}",
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
                joining,
                held,
                f"did not join the process group within {joining.limit:.0f} s{_known(held)}{at}",
            )


def hosts(host_joinings: tuple[HostJoining, ...]) -> Iterator[Finding]:
    for joining in host_joinings:
        if not joining.came or len(joining.came) >= joining.expected:
            continue
        given = {one.node_rank for one in joining.callers}
        absent = [str(rank) for rank in range(joining.expected) if rank not in given]
        numbered = bool(given) and None not in given
        who = f"node rank {few(absent, FEW)}" if numbered else "the other hosts"
        host, _, port = joining.endpoint.rpartition(":")
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.CERTAIN,
            because=(
                f"{len(joining.came)} of {joining.expected} hosts reached {joining.endpoint} "
                f"within {joining.limit:.0f} s: {few(joining.came, FEW)}; {who} did not"
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
            fixes=(
                Fix(
                    summary="on each missing host, start the same command and test the connection",
                    paste=connection_test(host, port),
                    caution="the port is open only while another host waits there",
                ),
            ),
        )


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
            f"{ranks(rank.rank for rank in live.ranks)} of {live.looks[0].job} "
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


def in_a_log(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    if log_events.failed_otherwise(run, log_events.JOINING):
        return  # A rank that fails before it joins is missed by the others.
    for event in filter(log_events.missed, log.of("clients-joined", "store-barrier")):
        yield log_events.finding(
            [event],
            f"{event.values['joined']} of {event.values['wanted']} ranks reached the rendezvous; "
            "the other one has ended, or is held up before it, as by a GPU that does not answer",
            Fix(
                summary="find the host whose ranks have not joined, and what its rank does",
                paste="NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=INFO …  # which ranks say anything\n"
                "nvidia-smi; ps -eo pid,stat,wchan:32,args | grep train  # on each host",
            ),
            confidence=Confidence.POSSIBLE,
        )
        return


def _finding(joining: Joining, missing: Sequence[JoiningRank], because: str) -> Finding:
    held = next((one for one in missing if one.status in HELD and one.pid), None)
    hosts = _hosts(missing)
    more = f" and {len(missing) - FEW} more" if len(missing) > FEW else ""
    if held is not None:
        fix = Fix(
            summary=f"on {held.host}, find out what stops processes; SIGCONT resumes a process",
            paste="ps -eo pid,ppid,stat,user,args | awk '$3 ~ /[TD]/'\nkill -CONT PID",
        )
    else:
        where = f"on {few(hosts, FEW)}" if hosts else "on each host not named above"
        fix = Fix(
            summary=f"{where}, check that its processes run and what they wait for",
            paste="pgrep -af 'torchrun|torch.distributed.run|ddoctor.probe'\n"
            "py-spy dump --pid $(pgrep -f ddoctor.probe | tail -1)",
        )
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"{ranks(one.rank for one in missing[:FEW])}{more} of {joining.world_size} {because}"
        ),
        evidence=(
            Observation(name="time waited", value=joining.limit, unit="s"),
            *(
                Observation(
                    name=f"last step of rank {one.rank}",
                    value=one.last,
                    source=f"on {one.host}, pid {one.pid}",
                )
                for one in missing[:FEW]
                if one.last
            ),
        ),
        where=Where(hosts=tuple(hosts), ranks=tuple(one.rank for one in missing)),
        fixes=(fix,),
    )


def _known(ranks: Sequence[JoiningRank]) -> str:
    first = next((one for one in ranks if one.status), None)
    if first is None:
        hosts = _hosts(ranks)
        return f", though torchrun runs on {few(hosts, FEW)}" if hosts else ""
    who = f"rank {first.rank} (pid {first.pid} on {first.host})"
    return f": {who} {HELD.get(first.status, f'is {first.status}')}, at '{first.last}'"


def _hosts(ranks: Sequence[JoiningRank]) -> list[str]:
    return sorted({one.host for one in ranks if one.host})
