"""Numbers and addresses by which the hosts of a launch cannot meet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.mistake import Mistake
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.models import Confidence, Fix

OWN_NUMBER = {
    "torchrun": "torchrun --node-rank=$SLURM_NODEID",
    "accelerate": "accelerate launch --machine_rank $SLURM_NODEID",
}
OWN_NAME = re.compile(r"\$\(hostname\b|`hostname\b|\$HOSTNAME\b|\$\{HOSTNAME\}")
OF_TORCH = ("torchrun", "torch.distributed.launch")
BY_NUMBER = ("srun", "pdsh", "clush")
"""Starters that run one and the same command on every host."""
OWN_VARIABLES = ("env.PET_MASTER_ADDR", "env.PET_RDZV_ENDPOINT", "env.PET_RDZV_BACKEND")
# torch.distributed.run fills in localhost for static rendezvous; accelerate asks for the address.
ENDPOINTS = ("endpoint", "main-address")


def meetings(launch: Launch) -> Iterator[Mistake]:
    """All of them."""
    hosts, rank = launch.hosts, launch.get("host-rank")
    if hosts is None:
        return
    count = launch.get("hosts")
    if rank is not None and rank.number is not None and rank.number >= hosts > 0:
        yield Mistake(
            because=f"host {rank.number} ({rank.at}) does not exist: {hosts} hosts "
            f"({count.at if count else ''}) have the numbers 0 to {hosts - 1}",
            at=rank,
            fix=Fix(summary="count the hosts from 0", paste=f"# on the last host: {hosts - 1}"),
        )
    if hosts < 2:
        return
    standalone = launch.get("standalone")
    if standalone is not None and standalone.on:
        yield Mistake(
            because=f"--standalone ({standalone.at}) lets each host meet itself only, so each of "
            f"the {hosts} hosts waits for the others until a timeout",
            at=standalone,
            fix=Fix(
                summary="meet at an address of the first host",
                paste=f"torchrun --nnodes={hosts} --rdzv-backend=c10d --rdzv-id=job "
                "--rdzv-endpoint=FIRST_HOST:29500 …",
            ),
        )
        return
    if (
        rank is not None
        and rank.number is not None
        and _numbers_count(launch)
        and (starters := [name for name in launch.around if name in BY_NUMBER])
    ):
        yield Mistake(
            because=f"{starters[0]} runs this line on all {hosts} hosts, and each of them gets the "
            f"number {rank.number} ({rank.at})",
            at=rank,
            fix=Fix(
                summary="let each host read its own number, or let the rendezvous count",
                paste=f"srun bash -c '{OWN_NUMBER.get(launch.launcher, OWN_NUMBER['torchrun'])} …'"
                if starters[0] == "srun"
                else f"torchrun --nnodes={hosts} --rdzv-backend=c10d --rdzv-id=job "
                "--rdzv-endpoint=FIRST_HOST:29500 …",
            ),
        )
    elif rank is not None and _of_the_batch_host(rank, launch):
        yield Mistake(
            because=f"the batch script puts in {rank.value} before srun starts ({rank.at}), so "
            f"each of the {hosts} hosts gets the number of the first one, 0",
            at=rank,
            fix=Fix(
                summary="let the shell of each host put it in: in single quotes",
                paste=f"srun bash -c '{OWN_NUMBER.get(launch.launcher, OWN_NUMBER['torchrun'])} …'",
            ),
        )
    yield from _one_number_twice(launch, hosts)
    yield from _without_number(launch, hosts)
    yield from _unread_address(launch, hosts)
    yield from _address(launch, hosts)


def _one_number_twice(launch: Launch, hosts: int) -> Iterator[Mistake]:
    """Two lines that run at once, such as one for each host by ssh, with the same number."""
    rank = launch.get("host-rank")
    same = [one for one in launch.all("beside.seat") if one.value == launch.seat]
    if rank is None or rank.number is None or not same or not _numbers_count(launch):
        return
    lines = dict.fromkeys((same[0].at, rank.at))
    yield Mistake(
        because=f"two of the {hosts} hosts get the number {rank.number} ({', '.join(lines)})",
        at=rank,
        fix=Fix(
            summary="number the hosts from 0 on",
            paste=" ".join(f"--node-rank={number}" for number in range(hosts)),
        ),
        confidence=Confidence.LIKELY,
    )


def _without_number(launch: Launch, hosts: int) -> Iterator[Mistake]:
    """One line for all hosts, whose static rendezvous takes the number 0 where none is given.

    Source: torch/distributed/run.py, get_args_parser, ``--node-rank``.
    """
    starters = [name for name in launch.around if name in BY_NUMBER]
    count, given = launch.get("hosts"), launch.get("host-rank", "env.PET_NODE_RANK")
    told = given is not None or launch.get(*OWN_VARIABLES) is not None
    if launch.launcher not in OF_TORCH or told or not starters or not _numbers_count(launch):
        return
    if count is not None:
        yield Mistake(
            because=f"{starters[0]} runs this line on all {hosts} hosts ({count.at}), and it "
            "gives them no --node-rank: each of them takes the number 0",
            at=count,
            fix=Fix(
                summary="let the rendezvous count the hosts, or give each its number",
                paste=f"torchrun --nnodes={hosts} --rdzv-backend=c10d --rdzv-id=job "
                "--rdzv-endpoint=FIRST_HOST:29500 …",
            ),
            confidence=Confidence.LIKELY,
        )


def _unread_address(launch: Launch, hosts: int) -> Iterator[Mistake]:
    """The rendezvous c10d reads its endpoint alone, and then takes this host itself.

    Source: torch/distributed/run.py, get_rdzv_endpoint; elastic/rendezvous/utils.py,
    parse_rendezvous_endpoint.
    """
    backend, address = launch.get("rendezvous"), launch.get("main-address")
    unread = backend is not None and backend.value == "c10d" and launch.get("endpoint") is None
    if launch.launcher not in OF_TORCH or not unread or launch.get(*OWN_VARIABLES) is not None:
        return
    if backend is not None and address is not None:
        yield Mistake(
            because=f"--master-addr ({address.at}) counts for the static rendezvous alone, and "
            f"this one is c10d ({backend.at}): each of the {hosts} hosts waits for the others at "
            "its own localhost",
            at=address,
            fix=Fix(
                summary="give the address as the endpoint",
                paste=f"--rdzv-endpoint={address.value}:29500",
            ),
            confidence=Confidence.LIKELY,
        )


def _of_the_batch_host(rank: Setting, launch: Launch) -> bool:
    """Whether a variable of each task is put in by the script of sbatch, for all of them."""
    around = launch.around
    # `srun bash -c "…"`: in double quotes, the script of sbatch puts it in as well.
    if launch.get("put-in-early") is not None and around[-2:-1] == ("srun",):
        around = around[:-1]
    by_sbatch = around[-3:] == ("sbatch", rank.file.rpartition("/")[2], "srun")
    own = re.fullmatch(r"\$\{?SLURM_(?:NODEID|PROCID)\}?", rank.value) is not None
    return by_sbatch and own and _numbers_count(launch)


def _numbers_count(launch: Launch) -> bool:
    """Whether the numbers of the hosts count: the rendezvous c10d counts the hosts itself.

    Source: torch/distributed/run.py, "--node-rank … when using static rendezvous".
    """
    backend = launch.get("rendezvous")
    return backend is None or backend.value == "static"


def _address(launch: Launch, hosts: int) -> Iterator[Mistake]:
    # Plain processes, as srun starts them, read the address from the environment.
    own = ("env.MASTER_ADDR",) if launch.launcher == "python" else ()
    meets = launch.get(*ENDPOINTS, *own)
    # Operators of Kubernetes, and some sites, set torchrun's options by its variables.
    if launch.get("kind", "accelerate.mpirun_config.mpirun_hostfile", *OWN_VARIABLES) is not None:
        return
    if meets is not None and OWN_NAME.match(meets.value) and _on_each_host(meets, launch):
        yield Mistake(
            because=f"{hosts} hosts would meet at {meets.value} ({meets.at}): each of them reads "
            "this line, and puts in its own name",
            at=meets,
            fix=Fix(
                summary="give the address of the first host",
                paste="--rdzv-endpoint=FIRST_HOST:29500  # or --master-addr, --main_process_ip",
            ),
            confidence=Confidence.LIKELY,
        )
    elif meets is None and launch.launcher in ("torchrun", "torch.distributed.launch"):
        at = launch.get("hosts")
        backend = launch.get("rendezvous")
        # torch/distributed/elastic/rendezvous: both then take this host itself.
        if at is not None and (backend is None or backend.value in ("static", "c10d")):
            yield Mistake(
                because=f"{hosts} hosts ({at.at}) have no address to meet at, so each waits for "
                "the others at its own 127.0.0.1",
                at=at,
                fix=Fix(
                    summary="give the address of the first host",
                    paste=f"torchrun --nnodes={hosts} --rdzv-backend=c10d --rdzv-id=job "
                    "--rdzv-endpoint=FIRST_HOST:29500 …",
                ),
            )
    elif meets is None and launch.launcher == "accelerate":
        at = launch.get("hosts")
        if at is not None:
            yield Mistake(
                because=f"{hosts} machines ({at.at}) have no main_process_ip to meet at",
                at=at,
                fix=Fix(
                    summary="give the address of the first machine",
                    paste=f"accelerate launch --num_machines {hosts} --machine_rank … "
                    "--main_process_ip FIRST_HOST --main_process_port 29500 …",
                ),
                confidence=Confidence.LIKELY,
            )


def _on_each_host(one: Setting, launch: Launch) -> bool:
    """Whether each host runs the script in which this is written."""
    name = one.file.rpartition("/")[2]
    starters = [at for at, around in enumerate(launch.around) if around in BY_NUMBER]
    return bool(starters) and name in launch.around[starters[0] :]
