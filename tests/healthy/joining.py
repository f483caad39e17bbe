"""Eight ranks that came at once, on a host that reaches its neighbour."""

from __future__ import annotations

from ddoctor.evidence.joining import Attempt, HostJoining, Joining, JoiningRank, Reach
from tests.healthy.host import HOST

ADDRESS = "10.0.0.11"

SECTIONS = (
    Joining(
        endpoint=f"{HOST}:29500",
        limit=120.0,
        world_size=8,
        ranks=tuple(
            JoiningRank(
                rank=rank,
                host=HOST,
                pid=4000 + rank,
                local_rank=rank,
                world_size=8,
                address=ADDRESS,
                visible_gpus=8,
                came=True,
                joined=True,
            )
            for rank in range(8)
        ),
        launched=8,
        launched_by="SLURM_NTASKS",
    ),
    Reach(
        host=HOST,
        attempts=(Attempt(host="node-2", address="10.0.0.12", port=41000, outcome="connected"),),
    ),
    HostJoining(
        host=HOST,
        endpoint=f"{HOST}:29500",
        limit=120.0,
        expected=2,
        came=(HOST, "node-2"),
    ),
)
