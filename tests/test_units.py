from __future__ import annotations

import pytest

from ddoctor.errors import DoctorError
from ddoctor.units import count, product, size


@pytest.mark.parametrize(
    ("text", "number"), [("4.4e9", 4.4e9), ("4.4B", 4.4e9), ("82m", 82e6), ("7 B", 7e9), ("12", 12)]
)
def test_counts(text: str, number: float) -> None:
    assert count("--params", text) == pytest.approx(number)


@pytest.mark.parametrize(
    ("text", "bytes"), [("24GiB", 24 * 2**30), ("10GB", 10**10), ("1.5tb", 1.5e12)]
)
def test_sizes(text: str, bytes: float) -> None:
    assert size("--activations", text) == bytes


@pytest.mark.parametrize(
    ("text", "number"), [("45000", 45000), ("50x30x30", 45000), ("45_000", 45000)]
)
def test_products(text: str, number: int) -> None:
    assert product("--samples", text) == number


@pytest.mark.parametrize("text", ["", "many", "-4", "0", "4.4Q", "nan", "1e", "1e300", "9" * 400])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(DoctorError, match="--params"):
        count("--params", text)


@pytest.mark.parametrize("text", ["", "24", "24 parsecs", "0GB", "9e300TiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(DoctorError, match="10GB or 24GiB"):
        size("--device-memory", text)


@pytest.mark.parametrize("text", ["", "1.5", "0", "50x", "-3", "9" * 30, "9" * 5_000])
def test_what_is_no_product(text: str) -> None:
    with pytest.raises(DoctorError, match="whole number"):
        product("--gpus", text)
