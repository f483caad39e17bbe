"""Several hosts that a launch lets meet at a local address: a different place on each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.mistake import Mistake
from ddoctor.analysis.rendezvous_mistakes import ENDPOINTS, OWN_VARIABLES
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.models import Confidence, Fix, Severity

LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
OR_ANOTHER = re.compile(r"(?P<name>\w+) replaces (?P<host>[^:,]+)")
"""A default of the shell, and the variable that replaces it."""
OF_OPERATORS = re.compile(r"MASTER_|PET_")
"""Variables that operators of Kubernetes, and plug-ins of Volcano, give to pods."""
WITHOUT_OPERATOR = ("Job", "JobSet")


def local_address(plan: LaunchPlan) -> Iterator[Mistake]:
    """All hosts read the same line, and each of them would wait at its own address."""
    launch, hosts = plan.launch, plan.launch.hosts or 1
    # Plain processes, as srun starts them, read the address from the environment.
    own = ("env.MASTER_ADDR",) if launch.launcher == "python" else ()
    meets, standalone = launch.get(*ENDPOINTS, *own), launch.get("standalone")
    if hosts < 2 or meets is None or meets.value.partition(":")[0] not in LOCAL:
        return
    # What --standalone does is told by itself.
    if (standalone is not None and standalone.on) or not _counts(meets, launch):
        return
    unless = _replaces(meets)
    yield Mistake(
        because=f"{hosts} hosts would meet at {meets.value} ({meets.at}), which is a different "
        f"place on each of them{f', unless {unless} is set' if unless else ''}",
        at=meets,
        fix=Fix(
            summary="give the address of the first host",
            paste="--rdzv-endpoint=FIRST_HOST:29500  # or --master-addr, --main_process_ip",
        ),
        confidence=Confidence.POSSIBLE if unless else Confidence.CERTAIN,
        severity=Severity.WARNING if unless else Severity.ERROR,
    )


def _replaces(meets: Setting) -> str:
    """The variable that would replace the local address; empty: it is no default."""
    found = OR_ANOTHER.finditer(meets.origin if meets.file else "")
    return next((one["name"] for one in found if one["host"] in LOCAL), "")


def _counts(meets: Setting, launch: Launch) -> bool:
    """Whether nothing around the launch gives it another address.

    An option of torchrun wins over the variables with which operators of Kubernetes, and some
    sites, set it. Source: torch/distributed/argparse_util.py, env.
    """
    if launch.get("accelerate.mpirun_config.mpirun_hostfile", *OWN_VARIABLES) is not None:
        return False
    kind, pods, unless = launch.get("kind"), launch.get("pods"), _replaces(meets)
    if kind is None:
        return True
    if pods is None or (pods.number or 0) < 2 or OF_OPERATORS.match(unless):
        return False
    return kind.value in WITHOUT_OPERATOR or (meets.name == "endpoint" and not unless)
