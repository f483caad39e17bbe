"""Makes evidence of files whose kind only their content says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle, limits
from ddoctor.evidence.section import Evidence
from ddoctor.reading.dumps import Dumps, is_dump
from ddoctor.reading.inputs import DAMAGE, GLANCE, UTF16, NotRead, found
from ddoctor.reading.logs import LogReader
from ddoctor.reading.snapshots import Snapshots, is_snapshot
from ddoctor.reading.trace_events import is_trace
from ddoctor.reading.traces import TraceReader

# All but those that terminals obey: of random bytes, one in ten.
CONTROL = bytes({*range(32)} - {*b"\b\t\n\f\r\x1b"})


def read(paths: Sequence[Path]) -> tuple[Evidence, tuple[NotRead, ...]]:
    """Read the files, as the evidence of one run, and tell what was not read.

    Raises:
        DoctorError: nothing could be read, or two bundles hold the same section.
    """
    logs, dumps, snapshots, traces = LogReader(), Dumps(), Snapshots(), TraceReader()
    refused = list[NotRead]()
    bundles = dict[Path, Evidence]()
    for one in found(paths):
        if isinstance(one, NotRead):
            refused.append(one)
            continue
        try:
            with one.opened() as content:
                if _is_bundle(first := content.beginning):
                    text = content.read(limits.MOST_BYTES + 1)
                    bundles[one.path] = bundle.decoded(text, one.path)
                elif is_snapshot(first):
                    snapshots.read(one, content)
                elif is_trace(first):
                    traces.read(one, content)
                elif is_dump(first):
                    dumps.read(one, content)
                elif why := _foreign(first):
                    refused.append(NotRead(name=one.name, why=why))
                else:
                    logs.read(one, content)
        except DAMAGE as error:
            some = "the rest, because " * (logs.files[-1:] == [one.name])
            refused.append(NotRead(name=one.name, why=some + _words(error)))
        except (DoctorError, ValueError) as error:
            refused.append(NotRead(name=one.name, why=str(error)))
    evidence = bundle.together(bundles.items())
    evidence = evidence.with_sections(
        *logs.outputs.sections(evidence),
        *logs.sections(),
        *dumps.sections(),
        *snapshots.sections(),
        *traces.sections(),
    )
    if not evidence and not bundles:
        raise DoctorError(_nothing(refused))
    return evidence, tuple(refused)


OF_JSON = re.compile(rb"\s*[{\[]\s*[{\[\"]")
"""How objects and lists of them begin; stamps of the kernel begin like lists of numbers."""


def _is_bundle(first: bytes) -> bool:
    text = first.lstrip()
    return text.startswith(b"{") and (b'"sections"' in first or b'"schema"' in first[:200])


def _foreign(first: bytes) -> str:
    """Why these bytes begin no text; empty: they may."""
    if not first:
        return "it is empty"
    if first.startswith(UTF16):
        return "it is UTF-16: convert it with iconv -f utf-16 -t utf-8"
    low, high = first[::2], first[1::2]
    for name, one, other in (("utf-16le", low, high), ("utf-16be", high, low)):
        if 0 not in one and other.count(0) > len(other) // 2:
            return f"it is UTF-16: convert it with iconv -f {name} -t utf-8"
    # A log has NUL bytes at its beginning or end where it was cut off, or the host lost power, and
    # a few where two processes wrote to one file.
    text = first.strip(b"\0")
    if not text or len(text) - len(text.translate(None, CONTROL)) > len(text) // 30:
        return "it is a binary file of no known kind"
    if text.lstrip()[:1] in (b"{", b"["):
        if len(first) == GLANCE and b"\n" not in text:
            return "it is JSON of no known kind"
        if len(first) < GLANCE and OF_JSON.match(text) and _is_cut_off(text):
            return "it is JSON that was cut off"
    return ""


def _is_cut_off(text: bytes) -> bool:
    """Whether a JSON value begins, and its end is missing."""
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except RecursionError:
        return True
    return False


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"it is damaged or cut off ({error})"


def _nothing(refused: Sequence[NotRead]) -> str:
    if not refused:
        return "there is nothing to read: the folder is empty"
    first, more = refused[0], len(refused) - 1
    # A bundle's error names the file itself.
    told = first.why if first.name in first.why else f"cannot read {first.name}: {first.why}"
    return f"{told}{f'; and {more} more' if more else ''}"
