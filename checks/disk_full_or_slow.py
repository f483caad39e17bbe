"""A disk that the run writes to is nearly full.

Checkpoints are large and come late: a run that fills the disk dies hours in, with "No space left on
device", or leaves a checkpoint that cannot be read back. Rank 0 dies, the others wait for it. The
temporary folder holds compiled kernels and the cache of Hugging Face holds models.

Seen from outside: ``df -h`` and ``df -i`` for the working folder, the temporary folder and the
cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.host import Disk, Disks
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("checkpoint-save-timeout",)

GB = 10**9

# NodeFilesystemAlmostOutOfSpace and …OutOfFiles of node_exporter's mixin: a warning at 5 % left,
# critical at 3 %.
LOW_SHARE, CRITICAL_SHARE = 0.05, 0.03
# A share alone condemns large disks: 5 % of 100 TB hold many checkpoints. One checkpoint with AdamW
# has 12 bytes a parameter (weight and two moments in fp32): 84 GB for 7e9 parameters, 1.3 GB for
# the 1.1e8 of BERT-base.
LARGE_CHECKPOINT, SMALL_CHECKPOINT = 84 * GB, 1.3 * GB
# An installation of torch alone has about as many files (counted: 14273 in torch 2.13 for CPUs).
FEW_FILES = 15_000


def nearly_full(disks: Disks) -> Iterator[Finding]:
    for disk in disks.disks:
        if not disk.writable or not disk.size:
            continue
        if disk.free_share < LOW_SHARE and disk.free < LARGE_CHECKPOINT:
            yield _out_of_space(disk)
        elif (
            disk.files
            and disk.files_free is not None
            and disk.files_free < min(FEW_FILES, CRITICAL_SHARE * disk.files)
        ):
            yield _out_of_files(disk, disk.files, disk.files_free)


def _out_of_space(disk: Disk) -> Finding:
    critical = disk.free_share < CRITICAL_SHARE and disk.free < SMALL_CHECKPOINT
    return Finding(
        severity=Severity.ERROR if critical else Severity.WARNING,
        confidence=Confidence.CERTAIN if critical else Confidence.LIKELY,
        because=(
            f"{_name(disk)} has {_size(disk.free)} left, {disk.free_share:.1%}; one checkpoint "
            f"with AdamW takes 12 bytes a parameter, {_size(12 * 10**9)} for a model of 1e9"
        ),
        evidence=(
            Observation(
                name=f"free on {disk.mount or disk.path}",
                value=round(disk.free / GB, 2),
                unit="GB",
                source="statvfs(3)",
            ),
            Observation(
                name="free share",
                value=round(100 * disk.free_share, 1),
                unit="%",
                expected=100 * LOW_SHARE,
                source="NodeFilesystemAlmostOutOfSpace of node_exporter's mixin",
            ),
        ),
        fixes=(*_elsewhere(disk), _largest(disk)),
    )


def _out_of_files(disk: Disk, files: int, left: int) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{_name(disk)} has {_size(disk.free)} left but only {left} of {files} inodes, one "
            "for each new file"
        ),
        evidence=(
            Observation(
                name=f"free inodes on {disk.mount or disk.path}",
                value=left,
                expected=FEW_FILES,
                source="NodeFilesystemAlmostOutOfFiles of node_exporter's mixin",
            ),
        ),
        fixes=(
            *_elsewhere(disk),
            Fix(
                summary="find the folders with the most files",
                paste=f"du --inodes -x {disk.mount or disk.path} | sort -n | tail -20",
            ),
        ),
    )


def _elsewhere(disk: Disk) -> Iterator[Fix]:
    if "Hugging Face cache" in disk.roles:
        yield Fix(
            summary="remove downloads that are not used, after looking",
            paste="hf cache ls && hf cache prune   # older: huggingface-cli delete-cache",
        )
    if "temporary folder" in disk.roles:
        yield Fix(
            summary="keep temporary files elsewhere",
            paste="export TMPDIR=/path/on/a/larger/disk",
        )


def _largest(disk: Disk) -> Fix:
    return Fix(
        summary="find what fills it",
        paste=f"du -xh --max-depth=2 {disk.mount or disk.path} | sort -h | tail -20",
    )


def _name(disk: Disk) -> str:
    mounted = f", {disk.filesystem} on {disk.mount}" if disk.mount else ""
    return f"the disk of the {' and '.join(disk.roles)} ({disk.path}{mounted})"


def _size(amount: float) -> str:
    return f"{amount / GB:.1f} GB" if amount >= GB else f"{amount / 10**6:.0f} MB"
