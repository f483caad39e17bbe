"""`dcgmi diag -j`: the tests of DCGM that a GPU did not pass."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddoctor.evidence.printed import DiagnosticFailure, GpuDiagnostic
from ddoctor.reading.machine.kind import Kind

MOST_FAILURES = 1_000
LONGEST_TEXT = 500
CONFIGURATION = 5
"""DCGM_ERROR_CONFIG of dcgm_errors.h: a setting, not a fault."""
# Tests of the installation; the last two of them show faults of the memory.
OF_SETTINGS = re.compile(
    r"(?:deny|black)list|nvml library|cuda \w+ library|permissions|persistence mode"
    r"|environment variables|graphics processes|software",
    re.I,
)
MEMORY = re.compile(r"row remap|page retire|retired pages|inforom|uncorrectable|\bECC\b", re.I)


def _read(lines: Sequence[str]) -> Iterator[GpuDiagnostic]:
    text = "\n".join(lines)
    try:
        # With braces in a line of its own, the first one stands before the output.
        told, _ = json.JSONDecoder().raw_decode(text if text.startswith("{") else "{" + text)
    except RecursionError as error:
        raise ValueError("too many parts within one another") from error
    top = next((told[name] for name in told if name.startswith("DCGM")), None)
    categories = _rows(top, "test_categories")
    if not categories:
        return
    failures = [
        failure
        for category in categories
        for test in _rows(category, "tests")
        for result in _rows(test, "results")
        if (failure := _failure(test, result)) is not None
    ]
    yield GpuDiagnostic(failures=tuple(failures[:MOST_FAILURES]))


def _rows(value: Any, name: str) -> Sequence[Mapping[str, Any]]:
    rows = value.get(name) if isinstance(value, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _failure(test: Mapping[str, Any], result: Mapping[str, Any]) -> DiagnosticFailure | None:
    if str(result.get("status", "")).lower() != "fail":
        return None
    warnings = result.get("warnings")
    rows = warnings if isinstance(warnings, list) else [warnings]
    told = [row for row in rows if isinstance(row, dict)]
    texts = [str(row.get("warning", "")) for row in told]
    texts += [row for row in rows if isinstance(row, str)]
    text = "; ".join(filter(None, texts))[:LONGEST_TEXT]
    name = str(test.get("name", ""))[:100]
    settings = told and all(row.get("error_severity") == CONFIGURATION for row in told)
    if settings or of_settings(name, text):
        return None
    # DCGM 4 calls GPUs entities; before, "gpu_id" or "gpu_ids" is a text.
    number = str(result.get("entity_id", result.get("gpu_id", result.get("gpu_ids", ""))))
    gpu = int(number) if re.fullmatch(r"[0-9]{1,3}", number) else None
    return DiagnosticFailure(test=name, gpu=gpu, text=text)


def of_settings(test: str, text: str) -> bool:
    """Whether a test is one of the installation, and its text says nothing about the memory."""
    return OF_SETTINGS.search(test) is not None and MEMORY.search(text) is None


KIND = Kind(
    name="dcgmi diag",
    holds=('"dcgm ',),
    begins=re.compile(r'^\{?\s*"DCGM (?:GPU )?Diagnostic"\s*:'),
    goes_on=re.compile(r'^\s*["{}\[\]\d]'),
    read=_read,
)
