"""Numbers as people write them: 4.4B parameters, 24GiB, 50x30x30 frames."""

from __future__ import annotations

import math
import re

from ddoctor.errors import DoctorError

COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
SIZES = {
    unit: base**power
    for base, suffix in ((1000, "B"), (1024, "iB"))
    for power, prefix in enumerate(("K", "M", "G", "T"), 1)
    for unit in (prefix + suffix,)
}
LARGEST = 1e18
"""An exabyte, and more parameters than any model has."""
MOST_DIGITS = 100
NUMBER = re.compile(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*([A-Za-z]*)")


def count(option: str, text: str) -> float:
    """Say 4.4e9, 4.4B, 82M; `DoctorError` for anything else, and not above zero."""
    return _read(option, text, COUNTS, "4.4e9, 4.4B or 82M")


def size(option: str, text: str) -> int:
    """Bytes of, say, 10GB or 24GiB; `DoctorError` for anything else, and not above zero."""
    return round(_read(option, text, SIZES, "10GB or 24GiB"))


def product(option: str, text: str) -> int:
    """Say 45000, or 50x30x30; `DoctorError` unless all factors are whole and above zero."""
    factors = re.split(r"[x×*]", text.replace("_", ""))
    # Python refuses to read thousands of digits.
    if len(text) <= MOST_DIGITS and all(one.strip().isdecimal() and int(one) for one in factors):
        found = math.prod(map(int, factors))
        if found <= LARGEST:
            return found
    raise DoctorError(f"{option} {text}: give a whole number, or a product as 50x30x30")


def _read(option: str, text: str, units: dict[str, float], examples: str) -> float:
    found = NUMBER.fullmatch(text.strip())
    known = {unit.lower(): factor for unit, factor in units.items()}
    if found is not None and found[2].lower() in known:
        number = float(found[1]) * known[found[2].lower()]
        if 0 < number <= LARGEST:
            return number
    raise DoctorError(f"{option} {text}: give it as {examples}")
