"""A disk that the run uses is nearly full, or too slow for the run.

Checkpoints are large and come late. A run that fills the disk dies after hours with "No space left
on device", or leaves a checkpoint that cannot be read back. Rank 0 dies and the other ranks wait
for it. The temporary folder holds compiled kernels; the Hugging Face cache holds models.

A slow disk is busy all the time and transfers little: a hard disk, a disk shared with other
processes, or one with many small reads or writes. It delays every rank that saves or loads.

Symptoms: ``df -h`` and ``df -i`` show a full working folder, temporary folder or cache; ``iostat -x
1`` shows a disk at 100 % and few MB/s.

To fix it, free or move space, save to a local NVMe, or pack small files into larger ones.
"""

# Above 150 lines: it judges free space, free inodes, and the traffic of a disk in a live run.

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.describe import few
from ddoctor.analysis.live_ranks import AGAIN, LiveRankState, named
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.host import Disk, Disks
from ddoctor.evidence.live import HostRates
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "checkpoint-save-timeout",
    "checkpoint-stall",
    "dataloader-bottleneck",
    "rank0-extra-work",
    "straggler-rank",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)

GB = 10**9

# psutil's name for a process in a read or write.
DISK_SLEEP = "disk-sleep"

# NodeFilesystemAlmostOutOfSpace and …OutOfFiles of node_exporter's mixin: a warning at 5 % left,
# critical at 3 %.
LOW_SHARE, CRITICAL_SHARE = 0.05, 0.03
# A share alone is wrong for large disks: 5 % of 100 TB hold many checkpoints. One checkpoint with
# AdamW has 12 bytes per parameter (weight and two moments in fp32): 84 GB for 7e9 parameters,
# 1.3 GB for the 1.1e8 of BERT-base.
LARGE_CHECKPOINT, SMALL_CHECKPOINT = 84 * GB, 1.3 * GB
WRITTEN_BY_ALL = ("/", "/tmp", "/var/tmp")
# An installation of torch alone has about as many files (counted: 14273 in torch 2.13 for CPUs).
FEW_FILES = 15_000
# Share of the sampled time, far above what a healthy disk in a healthy run shows.
BUSY, NOTABLE = 0.9, 0.2
# MiB/s of a hard disk with sequential access. A disk below that which is busy all the time is
# slower still, or reads and writes small pieces.
IN_ONE_GO = 100.0


def nearly_full(disks: Disks, log: Log | None) -> Iterator[Finding]:
    if disks.printed and log is not None and log.of("disk-full"):
        return  # told with the line of the run
    for disk in disks.disks:
        # Nothing says which of the printed ones the run uses, so only a full one counts.
        near = _is_full(disk) if disks.printed else disk.free < LARGE_CHECKPOINT
        if not disk.writable:
            continue
        if disk.size and disk.free_share < LOW_SHARE and near:
            yield _out_of_space(disk, _weight(disk, disks))
        elif (
            disk.files
            and disk.files_free is not None
            and disk.files_free < min(FEW_FILES, CRITICAL_SHARE * disk.files)
        ):
            yield _out_of_files(disk, disk.files, disk.files_free, _weight(disk, disks))


def slow_in_a_live_run(live: LiveState, rates: tuple[HostRates, ...]) -> Iterator[Finding]:
    if not live.moves:
        return
    for section in rates:
        slow = [
            disk
            for disk in section.disks
            if disk.busy >= BUSY and disk.read + disk.written < IN_ONE_GO
        ]
        held = [rank for rank in live.ranks if rank.host == section.host and _by_disk(rank)]
        if not slow or not held:
            continue
        disk = max(slow, key=lambda disk: disk.busy)
        saves = held[0].seen.share("checkpoint") >= NOTABLE
        share = held[0].seen.share("checkpoint" if saves else "loader-wait")
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"disk {disk.name} of {section.host} was busy for {disk.busy:.0%} of "
                f"{section.seconds:.0f} s at only {disk.read + disk.written:.1f} MiB/s, while "
                f"{named(held)} {'saved' if saves else 'waited for batches'} for {share:.0%} of "
                "the time"
            ),
            evidence=(
                Observation(
                    name=f"{disk.name} busy",
                    value=round(100 * disk.busy),
                    unit="% of time",
                    expected=100 * BUSY,
                    source="/proc/diskstats",
                ),
                Observation(name="read", value=disk.read, unit="MiB/s"),
                Observation(name="written", value=disk.written, unit="MiB/s", expected=IN_ONE_GO),
            ),
            where=Where.of(held, every=live.ranks),
            cost=Cost(value=round(share, 3), unit="share of step"),
            fixes=(
                Fix(
                    summary="use a faster disk of this host, and read and write large files",
                    paste=(
                        "# checkpoints to a local NVMe first, and from there in the background"
                        if saves
                        else "cp -r /data/set /local/nvme/set  # once; or pack small files"
                        " into shards"
                    ),
                ),
                Fix(
                    summary="show which processes use the disk",
                    paste="iotop -oPa -n 3 || pidstat -d 1 3",
                ),
            ),
        )


def in_a_log(log: Log, hosts: tuple[Disks, ...] | None) -> Iterator[Finding]:
    full = [disk.mount for one in hosts or () for disk in one.disks if disk.size and _is_full(disk)]
    shown = f"; no space is left on {few(full)}" if full else ""
    for event in () if log.of("memory-files") else log.of("disk-full"):
        if "/dev/shm" in event.text or "nccl" in event.text.lower():
            continue  # shm-too-small
        yield log_events.finding(
            [event],
            "a file could not be written to its end: the disk, or the quota on it, is full" + shown,
            Fix(
                summary="free space where the run writes, and keep fewer checkpoints",
                paste="df -h .; df -i .; quota -s; du -sh -- * | sort -h | tail",
            ),
        )
        return
    if error := log.first("disk-error"):
        yield log_events.finding(
            [error],
            "a read or write failed below the file system: the disk, its file server, or the "
            "space or quota on that server",
            Fix(
                summary="look at the space and the errors of the disk where the run writes",
                paste="df -h .; quota -s; sudo dmesg -T | grep -iE 'i/o error|nfs|lustre' | tail",
            ),
        )
    elif none := log.first("no-temporary-folder"):
        yield log_events.finding(
            [none],
            "no folder takes temporary files: their disks are full, or may not be written",
            Fix(
                summary="free space there, or name another folder",
                paste="df -h /tmp /var/tmp .; df -i /tmp\nexport TMPDIR=/local/disk/tmp",
            ),
            confidence=Confidence.POSSIBLE,
        )


def _by_disk(rank: LiveRankState) -> bool:
    """Whether it saves for long, repeatedly, or waits for workers that are blocked in reads."""
    saves = rank.seen.share("checkpoint") >= NOTABLE and rank.seen.visits("checkpoint") >= AGAIN
    reads = [worker for worker in rank.seen.workers if worker.state == DISK_SLEEP]
    loads = (
        rank.seen.share("loader-wait") >= NOTABLE and 2 * len(reads) >= len(rank.seen.workers) > 0
    )
    return saves or loads


def _is_full(disk: Disk) -> bool:
    return disk.free_share < CRITICAL_SHARE and disk.free < SMALL_CHECKPOINT


def _weight(disk: Disk, disks: Disks) -> tuple[Severity, Confidence]:
    if disks.printed:
        # Full data sets are only read.
        severity = Severity.WARNING if disk.path in WRITTEN_BY_ALL else Severity.NOTE
        return severity, Confidence.POSSIBLE
    if disk.size and _is_full(disk):
        return Severity.ERROR, Confidence.CERTAIN
    return Severity.WARNING, Confidence.LIKELY


def _out_of_space(disk: Disk, weight: tuple[Severity, Confidence]) -> Finding:
    severity, confidence = weight
    where = disk.mount or disk.path
    return Finding(
        severity=severity,
        confidence=confidence,
        because=(
            f"{_name(disk)} has {_size(disk.free)} left, {disk.free_share:.1%}; a checkpoint with "
            f"AdamW takes 12 bytes per parameter, {_size(12 * 10**9)} for 1e9 parameters"
        ),
        evidence=(
            Observation(
                name=f"free on {where}",
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
        fixes=(
            *_elsewhere(disk),
            Fix(
                summary="find the folders that fill the disk",
                paste=f"du -xh --max-depth=2 {where} | sort -h | tail -20",
            ),
        ),
    )


def _out_of_files(
    disk: Disk, files: int, left: int, weight: tuple[Severity, Confidence]
) -> Finding:
    severity, confidence = weight
    where = disk.mount or disk.path
    space = f"{_size(disk.free)} left but " if disk.size else ""
    return Finding(
        severity=severity,
        confidence=confidence,
        because=(
            f"{_name(disk)} has {space}only {left} of {files} inodes, and each new file takes one"
        ),
        evidence=(
            Observation(
                name=f"free inodes on {where}",
                value=left,
                expected=FEW_FILES,
                source="NodeFilesystemAlmostOutOfFiles of node_exporter's mixin",
            ),
        ),
        fixes=(
            *_elsewhere(disk),
            Fix(
                summary="find the folders with the most files",
                paste=f"du --inodes -x {where} | sort -n | tail -20",
            ),
        ),
    )


def _elsewhere(disk: Disk) -> Iterator[Fix]:
    if "Hugging Face cache" in disk.roles:
        yield Fix(
            summary="list the cached downloads, then remove the unused ones",
            paste="hf cache ls && hf cache prune   # older: huggingface-cli delete-cache",
        )
    if "temporary folder" in disk.roles:
        yield Fix(
            summary="move temporary files to another disk",
            paste="export TMPDIR=/path/on/a/larger/disk",
        )


def _name(disk: Disk) -> str:
    mounted = f", {disk.filesystem} on {disk.mount}" if disk.mount else ""
    if not disk.roles:
        return f"the file system on {disk.path}"
    return f"the disk of the {' and '.join(disk.roles)} ({disk.path}{mounted})"


def _size(amount: float) -> str:
    return f"{amount / GB:.1f} GB" if amount >= GB else f"{amount / 10**6:.0f} MB"
