"""One rank of `torchrun … -m ddoctor.probe`: it supervises what measures; rank 0 reports."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from ddoctor.cluster.launcher_environment import LaunchedRank
    from ddoctor.cluster.store import ClusterStore, RankInfo

JOIN_SECONDS = 120.0


# What a probe named burn takes without --burn: a GPU is warm, but not yet as hot as a day makes it.
BURN_SECONDS = 60.0


def parser() -> ArgumentParser:
    """The options of the probes of a cluster."""
    import argparse

    options = argparse.ArgumentParser(
        prog="torchrun … -m ddoctor.probe",
        description="Examine all hosts of a run, and report on rank 0.",
    )
    options.add_argument("probes", nargs="*", metavar="NAME", help="a probe; by default all")
    options.add_argument("--json", type=Path, metavar="PATH", help="the report as JSON; -: stdout")
    options.add_argument("--markdown", type=Path, metavar="PATH", help="the report as Markdown")
    options.add_argument("--html", type=Path, metavar="PATH", help="the report as one HTML file")
    options.add_argument("--bundle", type=Path, metavar="PATH", help="the evidence of all hosts")
    options.add_argument(
        "--hosts",
        type=Path,
        metavar="FOLDER",
        help="the names of fit and unfit hosts, as fit.txt and unfit.txt",
    )
    options.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        default=Path(),
        help="the data folder whose reading is measured",
    )
    options.add_argument(
        "--join-timeout",
        type=_positive,
        metavar="SECONDS",
        default=JOIN_SECONDS,
        help="how long to wait for ranks that do not come (%(default).0f)",
    )
    options.add_argument(
        "--force", action="store_true", help="measure on GPUs that other processes use, too"
    )
    options.add_argument(
        "--quick",
        action="store_true",
        help="a quarter of the time for each measurement, and no arms",
    )
    options.add_argument(
        "--burn",
        type=_positive,
        metavar="SECONDS",
        help="also compute for so long without a break, for heat and silently wrong results",
    )
    options.add_argument(
        "--workload",
        metavar="MODULE:FACTORY",
        help="also find how many samples of this training fit each device (memory_headroom)",
    )
    options.add_argument(
        "--micro-batch",
        metavar="N",
        help="the samples that it takes at a time now, on each rank",
    )
    options.add_argument(
        "--sequence",
        metavar="N",
        help="the tokens of its samples now, where its loss takes them as a third argument: also "
        "find how many fit",
    )
    options.add_argument(
        "--fsdp",
        action="store_true",
        default=None,
        help="spread it by FSDP, each block by itself, in place of DDP",
    )
    options.add_argument(
        "--device-memory",
        metavar="SIZE[,...]",
        help="what each rank may take of its device, say 24GiB; one for all, or one for each of a "
        "host's; needed where there is no GPU",
    )
    options.add_argument(
        "--no-arms",
        action="store_true",
        help="do not try the variables that a finding asks for",
    )
    return options


def _positive(word: str) -> float:
    from argparse import ArgumentTypeError
    from math import inf

    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise ArgumentTypeError(f"{word} is no number of seconds")
    return seconds


def parse(rank: int) -> Namespace:
    if rank == 0:
        return parser().parse_intermixed_args()
    from contextlib import redirect_stderr

    from ddoctor.cluster.launcher_environment import leave_it_to_rank_0

    # One complaint is enough.
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            return parser().parse_intermixed_args()
    except SystemExit as end:
        if end.code:
            leave_it_to_rank_0()
        raise


def supervise(mine: LaunchedRank, arguments: Namespace) -> int:
    from ddoctor.cluster.store import StoreLost, connect
    from ddoctor.cluster.supervisor import CoordinatorLost, serve
    from ddoctor.errors import DoctorError

    _quieten_torch()
    try:
        fleet = connect(
            mine.address,
            mine.port,
            host_it=mine.hosts_store,
            limit=arguments.join_timeout,
            prefix=mine.run,
        )
        me = _muster(mine, fleet, arguments)
        if mine.rank:
            return serve(fleet, me, arguments.data)
        return _lead(fleet, me, arguments)
    except (StoreLost, CoordinatorLost) as error:
        raise DoctorError(f"rank {mine.rank}: {error}") from error


def _quieten_torch() -> None:
    """Its C++ side logs a stack for every try to reach a store, which is told in one line."""
    name = "TORCH_CPP_LOG_LEVEL"
    if name not in os.environ:
        from importlib import import_module

        # Read once, when torch is loaded; what measures is to find the user's own environment.
        os.environ[name] = "FATAL"
        import_module("torch")
        del os.environ[name]


def _muster(mine: LaunchedRank, fleet: ClusterStore, arguments: Namespace) -> RankInfo:
    """Say who and where this rank is."""
    import socket
    from importlib.metadata import version

    from ddoctor.cluster.reachability import listen, own_address
    from ddoctor.cluster.store import JOINED, RankInfo, rank_key
    from ddoctor.probing.gpu_users import occupied
    from ddoctor.probing.world import usable_gpus

    address = own_address(mine.address)
    leads = mine.local_rank == 0
    count = usable_gpus()
    unfit = "" if arguments.data.is_dir() else f"there is no folder {arguments.data}: give --data"
    me = RankInfo(
        rank=mine.rank,
        local_rank=mine.local_rank,
        local_size=mine.local_size,
        world_size=mine.world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("ddoctor"),
        address=address,
        port=listen(address) if leads and address else 0,
        visible_gpus=count,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        hands_off=occupied() if leads and count and not arguments.force else "",
        unfit=unfit,
    )
    fleet.tell(rank_key(fleet.count(JOINED)), me)
    return me


def _lead(fleet: ClusterStore, me: RankInfo, arguments: Namespace) -> int:
    from ddoctor import engine
    from ddoctor.cluster.coordinator import Coordinator
    from ddoctor.cluster.launcher_environment import explain_failure
    from ddoctor.control_arms import candidates
    from ddoctor.evidence import bundle
    from ddoctor.probing import catalog, sweep_request
    from ddoctor.report.output import Outputs, progress

    names = list(arguments.probes or catalog.usual())
    if arguments.burn and "burn" not in names:
        names.append("burn")
    if arguments.workload and "memory_headroom" not in names:
        names.append("memory_headroom")
    burn = (arguments.burn or BURN_SECONDS) if "burn" in names else 0.0
    conductor = Coordinator(
        fleet,
        me,
        data=arguments.data,
        join_limit=arguments.join_timeout,
        burn=burn,
    )
    try:
        outputs = Outputs(
            json=arguments.json,
            markdown=arguments.markdown,
            html=arguments.html,
            bundle=arguments.bundle,
            hosts=arguments.hosts,
        )
        probes = catalog.choose(names)
        sweep = sweep_request.asked(arguments, probes)
        conductor.options = (
            *(["--quick"] if arguments.quick else []),
            *([f"--burn={burn}"] if burn else []),
            *([f"--headroom={sweep}"] if sweep else []),
        )
        with progress() as started:
            evidence = conductor.examine(probes, started)
            report = engine.examine(evidence, "probe")
            haste = arguments.no_arms or arguments.quick
            trials = () if haste else candidates(report, os.environ)
            if trials:
                evidence = conductor.prove(trials, started)
                report = engine.examine(evidence, "probe")
        if arguments.bundle is not None:
            bundle.write(arguments.bundle, evidence)
        outputs.write(report, evidence)
        sys.stdout.flush()
        code = report.exit_code
    finally:
        conductor.finish()
    if code:
        explain_failure("ddoctor has found something: its report is above, or in its files")
    return code
