from __future__ import annotations

import pytest

from ddoctor.errors import DoctorError
from ddoctor.forecast.devices import find

GIB = 2**30


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("h100-80", "H100 SXM"),
        ("H100", "H100 SXM"),
        ("h100-pcie", "H100 PCIe"),
        ("a100-40", "A100 40GB SXM"),
        ("a100-80", "A100 80GB SXM"),
        ("A100 80GB PCIe", "A100 80GB PCIe"),
        ("h200-141gb", "H200 SXM"),
        ("rtx 4090", "RTX 4090"),
        ("rtx-4090-24", "RTX 4090"),
        ("l40s", "L40S"),
        ("l4", "L4"),
    ],
)
def test_by_the_names_that_people_have_for_it(said: str, name: str) -> None:
    assert find(said).name == name


def test_a_process_gets_a_little_less_than_is_printed_on_it() -> None:
    # ml-engineering, of an A100: 79.15 GiB of 80.
    assert 77 * GIB < find("a100-80").memory < 79.15 * GIB


def test_what_no_table_knows() -> None:
    with pytest.raises(DoctorError, match="did you mean 'h100-80'"):
        find("h100-88")
    with pytest.raises(DoctorError, match="--device-memory 24GiB"):
        find("abacus")
