"""`ddoctor probe`: the hosts join first, within a limit; then each of them starts torchrun."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import NoReturn

from ddoctor import doctor, engine, gathering, launch, probe, processes
from ddoctor.collect import collect
from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle
from ddoctor.evidence.section import Absence, Absent, Evidence, Section
from ddoctor.gathering import Apart, Meeting
from ddoctor.report.output import STDOUT, Outputs, progress

MARK = "DDOCTOR_PROBE"
"""The environment variable that all processes of one start carry."""

RANKS_WITHOUT_GPU = 2
# Rank 0 still writes the report of what was measured.
GRACE_SECONDS = 20.0
PORT = 29400
"""Of an endpoint without one, as in torchrun."""
MASTER_PORT = 29500
KINDS_OF_RANKS = ("auto", "gpu", "cpu")

EPILOG = (
    "Run the same line on each host. All hosts meet at the endpoint within --join-timeout, or a "
    "report says who is missing; then torchrun is started on each with these numbers. Without "
    "--nnodes this host alone is examined."
)


class _Parser(ArgumentParser):
    """A mistake is one line."""

    def error(self, message: str) -> NoReturn:
        raise DoctorError(f"{message}; see `ddoctor probe --help`")


def _launcher() -> _Parser:
    options = _Parser(add_help=False, allow_abbrev=False)
    group = options.add_argument_group("as torchrun is told")
    group.add_argument("--nnodes", metavar="N", default="1", help="how many hosts (1)")
    group.add_argument(
        "--nproc-per-node", metavar="G", help="ranks per host (one per GPU; 2 without)"
    )
    group.add_argument(
        "--rdzv-endpoint", metavar="HOST:PORT", help="one of the hosts, and a free port there"
    )
    group.add_argument("--master-addr", metavar="HOST", help="the same in two words")
    group.add_argument("--master-port", metavar="PORT", help=f"({MASTER_PORT})")
    group.add_argument(
        "--node-rank", metavar="R", help="this host's number, 0 at the endpoint (given out)"
    )
    group.add_argument("--rdzv-id", metavar="NAME", default="none", help="the name of the run")
    group.add_argument(
        "--rdzv-backend", metavar="c10d|static", choices=("c10d", "static"), help="either is met"
    )
    group.add_argument("--standalone", action="store_true", help="this host alone")
    return options


def enter(words: Sequence[str]) -> int:
    """Join the other hosts, start torchrun; its exit code.

    Raises:
        DoctorError: what was asked for makes no run, or another host has the report.
    """
    spelt = [re.sub(r"^--[^=]+", lambda found: found[0].replace("_", "-"), one) for one in words]
    launcher = _launcher()
    parser = _Parser(
        prog="ddoctor probe",
        description="Examine all hosts of a run before it starts, and report on the first.",
        epilog=EPILOG,
        parents=[launcher, probe.parser()],
        conflict_handler="resolve",
        allow_abbrev=False,
    )
    if {"-h", "--help"} & set(spelt):
        print(parser.format_help(), end="")
        return 0
    arguments = parser.parse_intermixed_args(spelt)
    doctor.choose(arguments.probes or launch.names())
    meeting = _meeting(arguments)
    if meeting is None or meeting.host_it:
        _outputs(arguments)
    try:
        place = _join(meeting) if meeting is not None else ["--standalone"]
        # What is left is for the probe.
        _, rest = launcher.parse_known_args(spelt)
        return _torchrun(place, arguments, rest)
    except Apart as apart:
        return _report(apart, arguments)
    except KeyboardInterrupt:
        raise DoctorError("interrupted") from None


def _join(meeting: Meeting) -> list[str]:
    """Torchrun's words for the place of this host, once all have come."""
    with progress() as started:
        started(f"waiting for {meeting.hosts} hosts at {meeting.endpoint}")
        number = gathering.gather(meeting)
    return [
        f"--nnodes={meeting.hosts}",
        f"--node-rank={number}",
        f"--master-addr={meeting.address}",
        f"--master-port={meeting.port}",
        f"--rdzv-id={meeting.run}",
    ]


def _meeting(arguments: Namespace) -> Meeting | None:
    """Where the hosts meet; None: this one is all there is.

    Raises:
        DoctorError: the numbers or the endpoint make no sense.
    """
    if ":" in arguments.nnodes:
        raise DoctorError(
            f"--nnodes {arguments.nnodes} is a range, and the probes need one number: that of all "
            "hosts"
        )
    hosts = _number("--nnodes", arguments.nnodes, 1)
    ranks = arguments.nproc_per_node
    if ranks is not None and ranks not in KINDS_OF_RANKS:
        _number("--nproc-per-node", ranks, 1)
    given = arguments.node_rank is not None
    node_rank = _number("--node-rank", arguments.node_rank, 0, hosts - 1) if given else None
    endpoint = _endpoint(arguments)
    if arguments.standalone and hosts > 1:
        raise DoctorError("--standalone is one host: leave it out, or --nnodes")
    if hosts == 1:
        return None
    if endpoint is None:
        raise DoctorError(
            f"--nnodes {hosts} needs a place where the hosts meet: --rdzv-endpoint HOST:PORT, with "
            "the name of one of them"
        )
    address, port = endpoint
    if address == "localhost" or address.startswith("127.") or address == "::1":
        raise DoctorError(
            f"{address} is another host on each of {hosts}: name one of them as the others see it"
        )
    by_number = arguments.master_addr is not None and node_rank is not None
    return Meeting(
        address=address,
        port=port,
        hosts=hosts,
        node_rank=node_rank,
        run=arguments.rdzv_id,
        limit=arguments.join_timeout,
        host_it=node_rank == 0 if by_number else gathering.is_here(address),
    )


def _endpoint(arguments: Namespace) -> tuple[str, int] | None:
    told, master = arguments.rdzv_endpoint, arguments.master_addr
    if told is not None and master is not None:
        raise DoctorError("--rdzv-endpoint and --master-addr exclude each other: give one of them")
    if master is not None:
        if not master:
            raise DoctorError("--master-addr is empty: give the name of the first host")
        port = arguments.master_port or str(MASTER_PORT)
        return master, _number("--master-port", port, 1, 65535)
    if arguments.master_port is not None:
        raise DoctorError("--master-port needs --master-addr, or give --rdzv-endpoint HOST:PORT")
    if told is None:
        return None
    host, colon, port = told.rpartition(":")
    if not colon or told.endswith("]"):
        host, port = told, str(PORT)
    host = host.strip("[]")
    if not host:
        raise DoctorError(f"--rdzv-endpoint {told!r} names no host: give HOST:PORT")
    return host, _number(f"the port of --rdzv-endpoint {told}", port, 1, 65535)


def _number(name: str, text: str, least: int, most: int | None = None) -> int:
    number = int(text) if text.isdecimal() else -1
    if number < least or (most is not None and number > most):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise DoctorError(f"{name} should be a number {bounds}, not {text!r}")
    return number


def _outputs(arguments: Namespace) -> Outputs:
    return Outputs(
        json=arguments.json,
        markdown=arguments.markdown,
        html=arguments.html,
        bundle=arguments.bundle,
    )


def _report(apart: Apart, arguments: Namespace) -> int:
    """What is known of a meeting that failed, with what is to be seen on this host."""
    found = list(apart.sections)
    absences: list[Absence] = []
    with progress() as started:
        for outcome in collect(lambda label: started(f"looking at {label}")):
            if isinstance(outcome, Section):
                found.append(outcome)
            else:
                absences.append(outcome)
    found.append(Absent(host=socket.gethostname(), sections=tuple(absences)))
    evidence = Evidence(found)
    report = engine.examine(evidence, "probe")
    if apart.first:
        if arguments.bundle is not None:
            bundle.write(arguments.bundle, evidence)
        _outputs(arguments).write(report, evidence)
    else:
        # Files are the first host's: their folder may be a shared one.
        Outputs(json=STDOUT if arguments.json == STDOUT else None).write(report, evidence)
    return report.exit_code


def _torchrun(place: Sequence[str], arguments: Namespace, rest: Sequence[str]) -> int:
    from ddoctor.harness import end_with_parent, usable_gpus

    ranks = arguments.nproc_per_node or usable_gpus() or RANKS_WITHOUT_GPU
    mark = uuid.uuid4().hex
    # PET_… are torchrun's own options, set by an outer launcher, say a Kubernetes operator.
    outer = ("PET_", "TORCHELASTIC_")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(outer)}
    # A queue.py in the user's folder must not be imported in place of Python's own.
    environment |= {MARK: mark, "PYTHONSAFEPATH": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", *place, f"--nproc-per-node={ranks}"]
    try:
        agent = subprocess.Popen(
            [*torchrun, "-m", "ddoctor.probe", *rest],
            env=environment,
            stdin=subprocess.DEVNULL,
            # Ctrl-C in the terminal is for ddoctor, which then ends the tree in order.
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        code = agent.wait()
    finally:
        processes.end(GRACE_SECONDS, **{MARK: mark})
    if code < 0:
        raise DoctorError(f"torchrun was ended by {signal.Signals(-code).name}")
    return code
