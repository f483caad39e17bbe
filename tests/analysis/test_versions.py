"""Versions as strangers write them."""

from __future__ import annotations

import pytest

from ddoctor.analysis.parsing import is_older
from ddoctor.evidence.known_software import within


def test_versions() -> None:
    assert within("2.5.1", ">=2.4,<2.6")
    assert not within("2.6.0", ">=2.4,<2.6")
    assert is_older("2.5.1", "2.10")
    assert not is_older("2.10", "2.5.1")


@pytest.mark.parametrize("version", ["", "main", "1" * 5000, "2.4." + "9" * 5000])
def test_what_is_no_version_is_in_no_range(version: str) -> None:
    assert not within(version, ">=0")
    assert not is_older(version, "9999")
