from __future__ import annotations

import pytest

from ddoctor.models import Severity
from tests.conftest import Findings
from tests.launched import launch

CAUSE = "env-not-propagated-to-nodes"
DEBUG = {"env.NCCL_DEBUG": "INFO"}
HOSTS = {"mpirun.host": "a:2,b:2"}


def test_mpirun_names_other_variables(findings: Findings) -> None:
    (finding,) = findings(
        CAUSE,
        launch("python", "train.py", {**DEBUG, **HOSTS, "mpirun.x": "PATH"}, around=("mpirun",)),
    )
    assert finding.severity is Severity.WARNING
    assert "-x NCCL_DEBUG" in finding.fixes[0].paste


def test_srun_passes_on_a_list(findings: Findings) -> None:
    told = {**DEBUG, "srun.export": "PATH,HOME"}
    (finding,) = findings(CAUSE, launch("python", "train.py", told, around=("srun",)))
    assert "--export=PATH,HOME" in finding.because


@pytest.mark.parametrize(
    ("around", "settings"),
    [
        (("mpirun",), {**DEBUG, **HOSTS, "mpirun.x": "NCCL_DEBUG=INFO"}),
        (("mpirun",), DEBUG),
        (("mpiexec",), {**DEBUG, **HOSTS, "mpirun.hydra": "ppn"}),
        (("mpirun",), {"env.MY_OWN": "1", **HOSTS}),
        (("srun",), DEBUG),
        (("srun",), {**DEBUG, "srun.export": "ALL"}),
        (("srun",), {**DEBUG, "srun.export": "ALL,A=1"}),
        (("srun",), {**DEBUG, "srun.export": "NCCL_DEBUG"}),
        ((), {**DEBUG, "srun.export": "NONE"}),
    ],
)
def test_quiet(findings: Findings, around: tuple[str, ...], settings: dict[str, str]) -> None:
    assert findings(CAUSE, launch("python", "train.py", settings, around=around)) == ()
