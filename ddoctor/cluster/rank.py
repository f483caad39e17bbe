"""One rank of `torchrun … -m ddoctor.probe`: it supervises the measurement; rank 0 reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ddoctor import engine
from ddoctor.cluster.coordinator import Coordinator
from ddoctor.cluster.launcher_environment import (
    LaunchedRank,
    explain_failure,
    leave_it_to_rank_0,
    place,
)
from ddoctor.cluster.reachability import listen
from ddoctor.cluster.store import (
    ANSWER_SECONDS,
    JOINED,
    ClusterStore,
    RankInfo,
    StoreLost,
    connect,
    crowding,
    key,
)
from ddoctor.cluster.supervisor import CoordinatorLost, serve
from ddoctor.collect.network import own_address
from ddoctor.control_arms import candidates
from ddoctor.errors import DoctorError
from ddoctor.options import parse
from ddoctor.probing import catalog, sweep_request
from ddoctor.probing.gpu_users import occupied
from ddoctor.probing.options import ProbeOptions
from ddoctor.probing.world import usable_gpus
from ddoctor.proc.folder import without_room
from ddoctor.report.output import progress

PROGRAM = "torchrun … -m ddoctor.probe"
# Length of the probe burn without --burn: warms the GPU, but less than hours of training.
BURN_SECONDS = 60.0


def main(words: Sequence[str]) -> int:
    """Supervise the measuring process; rank 0 also coordinates and writes the report.

    Raises:
        DoctorError: an option is wrong, or the ranks cannot reach each other.
    """
    launched = place()
    try:
        options = parse(ProbeOptions, words, PROGRAM, quiet=launched.rank > 0)
    except DoctorError:
        # Rank 0 finds the same mistake; one message is enough.
        if launched.rank == 0:
            raise
        leave_it_to_rank_0()
        return 2
    return 0 if options is None else _supervise(launched, options)


def _supervise(launched: LaunchedRank, options: ProbeOptions) -> int:
    try:
        store = connect(
            launched.address,
            launched.port,
            host_it=launched.hosts_store,
            limit=ANSWER_SECONDS * crowding(launched.local_size)
            if launched.agent_store
            else options.join_timeout,
            prefix=launched.run,
            ranks=launched.world_size,
            local_ranks=launched.local_size,
        )
        if launched.rank:
            me = _join(launched, store, options)
            return serve(store, me, options.data, options.join_timeout)
        with store.beating():
            return _lead(store, _join(launched, store, options), options)
    except (StoreLost, CoordinatorLost) as error:
        raise DoctorError(f"rank {launched.rank}: {error}") from error


def _join(launched: LaunchedRank, store: ClusterStore, options: ProbeOptions) -> RankInfo:
    """Announce this rank in the store."""
    address = own_address(launched.address)
    leads = launched.local_rank == 0
    count = usable_gpus()
    no_data = (
        ""
        if os.path.isdir(options.data)
        else f"there is no folder {options.data} that can be read: give --data"
    )
    me = RankInfo(
        rank=launched.rank,
        local_rank=launched.local_rank,
        local_size=launched.local_size,
        world_size=launched.world_size,
        address=address,
        port=listen(address) if leads and address else 0,
        visible_gpus=count,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        gpus_in_use=occupied() if leads and count and not options.force else "",
        unfit=no_data or without_room(),
    )
    store.set(key("rank", store.add(JOINED)), me)
    return me


def _lead(store: ClusterStore, me: RankInfo, options: ProbeOptions) -> int:
    names = list(options.probes or catalog.usual())
    if options.burn and "burn" not in names:
        names.append("burn")
    if options.workload and "memory_headroom" not in names:
        names.append("memory_headroom")
    burn = (options.burn or BURN_SECONDS) if "burn" in names else 0.0
    coordinator = Coordinator(store, me, options.data, options.join_timeout, burn)
    try:
        outputs = options.outputs()
        probes = catalog.choose(names)
        sweep = sweep_request.asked(options, probes)
        settings = {"--quick": options.quick, f"--burn={burn}": burn, f"--headroom={sweep}": sweep}
        coordinator.options = tuple(word for word, given in settings.items() if given)
        with progress() as started:
            evidence = coordinator.examine(probes, started)
            report = engine.examine(evidence, "probe")
            skipped = options.no_arms or options.quick
            trials = () if skipped else candidates(report, os.environ)
            if trials:
                evidence = coordinator.prove(trials, started)
                report = engine.examine(evidence, "probe")
        outputs.write(report, evidence)
        sys.stdout.flush()
        code = report.exit_code
    finally:
        coordinator.finish()
    if code:
        explain_failure("ddoctor has findings: see its report above or in its files")
    return code
