"""`ddoctor probe`: measure all hosts of a run, with torchrun's options."""

from __future__ import annotations

from dataclasses import dataclass

from ddoctor.cluster.endpoint import TorchrunOptions
from ddoctor.probing.options import ProbeOptions

SETTINGS = {
    "epilog": "Run the same command on every host. If hosts are missing after --join-timeout, the "
    "report names them. Without --nnodes only this host is measured."
}


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(TorchrunOptions, ProbeOptions):
    """The options of ``ddoctor probe``."""


def probe(options: ClusterOptions) -> int:
    """Measure all hosts of a run together before it starts."""
    from ddoctor.cluster import start

    return start.start(options, options)
