"""Another process has the port at which the ranks are to meet.

The rank-0 process opens a store at MASTER_ADDR:MASTER_PORT, and all ranks join through it. If
another job, or what is left of the previous one, has that port, the new job fails at once with
"Address already in use" (EADDRINUSE), or its ranks join a stranger's store and wait there for ever.

Without MASTER_PORT, DeepSpeed, accelerate's notebook_launcher and torchrun across nodes take 29500,
so two jobs on one machine collide unless one of them is told another port. A recent torchrun on a
single node, ``torchrun --standalone`` and ``accelerate launch`` find themselves a free one.

Seen from outside: ``ss -ltnp | grep :29500`` names the process.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.network import Rendezvous
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity


def taken(rendezvous: Rendezvous) -> Iterator[Finding]:
    if rendezvous.port_free is not False:
        return
    port, holder = rendezvous.port, rendezvous.port_holder
    chosen = rendezvous.port_from == "MASTER_PORT"
    by = (
        f"{holder.command} (pid {holder.pid}, user {holder.user})"
        if holder
        else "a process that cannot be seen from here"
    )
    yield Finding(
        severity=Severity.ERROR if chosen else Severity.WARNING,
        confidence=Confidence.CERTAIN if chosen else Confidence.LIKELY,
        because=(
            f"port {port}, which MASTER_PORT asks for, is held by {by}"
            if chosen
            else f"port {port}, which launchers take when none is given, is held by {by}"
        ),
        evidence=(
            Observation(
                name=f"port {port}",
                value=f"held by pid {holder.pid}" if holder else "held",
                expected="free",
                source="a bind of this port, as TCPStore does it",
            ),
        ),
        fixes=tuple(_fixes(rendezvous)),
    )


def _fixes(rendezvous: Rendezvous) -> Iterator[Fix]:
    if (port := rendezvous.other_port) is not None:
        yield Fix(
            summary=f"meet at port {port}, which is free here",
            paste=(
                f"export MASTER_PORT={port}\n"
                f"# or: torchrun --master_port {port} …\n"
                f"#     accelerate launch --main_process_port {port} …\n"
                f"#     deepspeed --master_port {port} …"
            ),
            caution="the same number on every node" if rendezvous.several_nodes else "",
        )
    if (holder := rendezvous.port_holder) is not None:
        yield Fix(
            summary="see whether it is left over from an earlier run",
            paste=f"ps -o pid,ppid,user,lstart,args -p {holder.pid}",
            caution=f"if it is, `kill {holder.pid}` frees the port; if not, it is somebody's run",
        )
