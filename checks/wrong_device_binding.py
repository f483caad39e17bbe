"""Two ranks use one GPU, while others may be idle.

Each rank takes the GPU of its local rank. That goes wrong where the launcher leaves LOCAL_RANK out
or gives every rank the same CUDA_VISIBLE_DEVICES, where the script calls NCCL before
``torch.cuda.set_device``, or takes ``cuda:0`` everywhere. NCCL refuses two ranks on one GPU;
without NCCL they share its memory and speed.

Seen from outside: "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000", or
``nvidia-smi`` showing all processes on GPU 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ddoctor.analysis.local_ranks import device_of
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.joining import Joining
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "uneven-gpu-memory")


def by_rank(joinings: tuple[Joining, ...], hosts: tuple[Gpus, ...]) -> Iterator[Finding]:
    for joining in joinings:
        yield from _doubles(joining, hosts)


def _doubles(joining: Joining, hosts: tuple[Gpus, ...]) -> Iterator[Finding]:
    by_host = {section.host: section for section in hosts}
    users: dict[tuple[str, str], list[int]] = defaultdict(list)
    names: dict[tuple[str, str], int] = {}
    for one in joining.ranks:
        section = by_host.get(one.host)
        gpu = device_of(one, section.gpus) if section is not None and one.came else None
        if gpu is not None:
            users[one.host, gpu.uuid].append(one.rank)
            names[one.host, gpu.uuid] = gpu.index
    for (host, uuid), ranks in users.items():
        if len(ranks) < 2:
            continue
        index = names[host, uuid]
        idle = len(by_host[host].gpus) - sum(1 for where, _ in users if where == host)
        told = {one.visible_devices for one in joining.ranks if one.rank in ranks}
        seen = ", ".join(sorted(f"CUDA_VISIBLE_DEVICES={value}" for value in told if value))
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.CERTAIN,
            because=(
                f"ranks {', '.join(map(str, ranks))} on {host} all take GPU {index}"
                + (f" ({seen})" if seen else "")
                + (f", and {idle} of its GPUs are taken by none" if idle else "")
            ),
            evidence=(
                Observation(
                    name=f"ranks on GPU {index}",
                    value=len(ranks),
                    expected=1,
                    source="NCCL takes one rank per GPU",
                ),
            ),
            where=Where(hosts=(host,), ranks=tuple(ranks), devices=(f"cuda:{index}",)),
            fixes=(
                Fix(
                    summary="let every rank see all GPUs, and take the one of its local rank",
                    paste=(
                        "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))\n"
                        "torch.cuda.set_device(device)\n"
                        "torch.distributed.init_process_group(device_id=device)"
                    ),
                    language="python",
                    caution="unset CUDA_VISIBLE_DEVICES where it is set alike for all ranks",
                ),
            ),
        )
