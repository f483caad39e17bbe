"""Tokenizers were used before a fork: in DataLoader workers they have one thread from then on.

A fork copies locks that other threads may hold. The tokenizers library therefore switches its own
threads off in forked processes and prints a warning in each of them. It does no harm, except that
tokenising in the workers becomes slower.

Symptoms: "huggingface/tokenizers: The current process just got forked, after parallelism has
already been used".

To fix it, set TOKENIZERS_PARALLELISM, or tokenise before the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix, Severity


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("tokenizers-fork"):
        yield log_events.finding(
            [event],
            "the workers of the DataLoader tokenise with one thread each; nothing fails of it",
            Fix(
                summary="say so before the run, which also ends the warnings",
                paste="export TOKENIZERS_PARALLELISM=false",
            ),
            severity=Severity.NOTE,
            confidence=Confidence.CERTAIN,
        )
