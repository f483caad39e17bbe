"""DataLoader workers use more file descriptors than the limit allows.

By default each tensor that a worker hands over is a file descriptor. Samples with many small
tensors, or batches that are kept, use thousands of them.

Symptoms: "Too many open files" or "received 0 items of ancdata" from the loader or its workers.

To fix it, raise the limit, or share memory by names of files.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log
from ddoctor.models import Finding, Fix

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("too-many-files"):
        yield log_events.finding(
            [event],
            "the process has as many files open as `ulimit -n` allows",
            Fix(summary="raise the limit where the run is started", paste="ulimit -n 65535"),
            Fix.python(
                summary="or share the tensors of workers by names of files",
                paste='torch.multiprocessing.set_sharing_strategy("file_system")',
                caution="files of a killed run stay in /dev/shm",
            ),
        )
