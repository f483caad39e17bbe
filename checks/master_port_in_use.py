"""Another process uses the rendezvous port (MASTER_PORT).

Rank 0 opens a store at MASTER_ADDR:MASTER_PORT, and all ranks join through it. Another job, or a
leftover of the previous one, may already use that port. The new job then fails at once with
"Address already in use" (EADDRINUSE), or its ranks join the wrong store and wait there forever.

Without MASTER_PORT, DeepSpeed, accelerate's notebook_launcher and multi-node torchrun use 29500.
Two jobs on one machine then collide unless one sets another port. A recent torchrun on a single
node, ``torchrun --standalone`` and ``accelerate launch`` choose a free port.

Symptoms: EADDRINUSE at the start; ``ss -ltnp | grep :29500`` shows the process.

To fix it, set MASTER_PORT to a free port on every node, or end the leftover process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.log import Log
from ddoctor.evidence.network import Rendezvous
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


OF_TORCH = re.compile(
    r"c10d|socket\.cpp|TCPStore|Dist\w*Error|server socket|^RuntimeError|Tried to launch"
)


def beside_another_launch(plan: LaunchPlan) -> Iterator[Finding]:
    """Two launches of one script run at the same time on one machine, with the same port."""
    launch = plan.launch
    other = launch.get(f"beside.{launch.launcher}")
    own = launch.get("main-port", "env.MASTER_PORT")
    if other is None or launch.get("elsewhere", "standalone", "endpoint") is not None:
        return
    if launch.launcher == "python" and launch.get("env.RANK") is not None:
        return  # These are ranks of one run, each started by hand.
    port = own.value if own is not None else ""
    # torchrun 2.13 takes a free port on one host where none is given; older ones take 29500.
    default = not port and launch.launcher in ("torchrun", "deepspeed")
    if other.value != port or not (port or default) or "$" in port:
        return
    sure = bool(port) or launch.launcher == "deepspeed"
    yield Finding(
        title="" if sure else "Two launches may use the same rendezvous port",
        severity=Severity.ERROR if sure else Severity.NOTE,
        confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
        because=f"the launch at {other.at} still runs as the one at {_line(launch)} starts, and "
        f"both use port {port or '29500, the default'}"
        + ("" if sure else "; recent versions of torchrun choose a free one"),
        evidence=(Observation(name="port", value=port or "29500", source=other.at),),
        fixes=(
            Fix(
                summary="give each launch its own port",
                paste="torchrun --standalone …  # or --master-port 29501",
            ),
        ),
    )


def _line(launch: Launch) -> str:
    return f"{launch.file.rpartition('/')[2]}:{launch.line}" if launch.file else "the end"


def taken(rendezvous: Rendezvous) -> Iterator[Finding]:
    if rendezvous.port_free is not False:
        return
    port, holder = rendezvous.port, rendezvous.port_holder
    chosen = rendezvous.port_from == "MASTER_PORT"
    by = (
        f"{holder.command} (pid {holder.pid}, user {holder.user})"
        if holder
        else "a process that is not visible from here"
    )
    yield Finding(
        severity=Severity.ERROR if chosen else Severity.WARNING,
        confidence=Confidence.CERTAIN if chosen else Confidence.LIKELY,
        because=f"{by} already uses port {port}, "
        + ("which MASTER_PORT selects" if chosen else "the default port of launchers"),
        evidence=(
            Observation(
                name=f"port {port}",
                value=f"used by pid {holder.pid}" if holder else "in use",
                expected="free",
                source="a bind of this port, as in TCPStore",
            ),
        ),
        fixes=tuple(_fixes(rendezvous)),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("address-in-use"):
        # Others open ports as well: a page of TensorBoard, say.
        of_torch = OF_TORCH.search(event.text)
        yield log_events.finding(
            [event],
            "another process uses the port of the rendezvous",
            Fix(
                summary="find that process, or choose another port",
                paste="ss -ltnp | grep -E ':(29500|29400)'\ntorchrun --rdzv-endpoint=localhost:0 …",
                caution="with several nodes, choose the same --master-port on each",
            ),
            confidence=Confidence.LIKELY if of_torch else Confidence.POSSIBLE,
        )


def _fixes(rendezvous: Rendezvous) -> Iterator[Fix]:
    if (port := rendezvous.other_port) is not None:
        yield Fix(
            summary=f"use port {port}, which is free here",
            paste=(
                f"export MASTER_PORT={port}\n"
                f"# or: torchrun --master_port {port} …\n"
                f"#     accelerate launch --main_process_port {port} …\n"
                f"#     deepspeed --master_port {port} …"
            ),
            caution="use the same port on every node" if rendezvous.several_nodes else "",
        )
    if (holder := rendezvous.port_holder) is not None:
        yield Fix(
            summary="check whether the process is left over from an earlier run",
            paste=f"ps -o pid,ppid,user,lstart,args -p {holder.pid}",
            caution=f"if so, `kill {holder.pid}` frees the port; if not, it is a live run",
        )
