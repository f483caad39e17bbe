"""The known name that an unknown, misspelt name probably means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from functools import cache

# The names of one library resemble each other: of those in variables.toml one in six has a sibling
# that difflib rates 0.88 similar, so a new name would often look like a misspelt old one. Compared
# word by word, as here, it is one in sixty (tests/knowledge/test_variables.py).
SIMILAR = 0.75
ABBREVIATED = 0.8


@cache
def intended(name: str, known: tuple[str, ...]) -> str | None:
    """The known name that differs by a typo in one word, the order of words or a ``_``.

    The hosts of a cluster share variable names, so the result is cached.
    """
    candidates = sorted(_likenesses(name.upper(), known), reverse=True)
    return candidates[0][1] if candidates else None


def _likenesses(name: str, known: Iterable[str]) -> Iterator[tuple[float, str]]:
    words = name.split("_")
    for other in known:
        others = other.split("_")
        if sorted(words) == sorted(others) or name.replace("_", "") == other.replace("_", ""):
            yield 1.0, other
        elif len(words) == len(others):
            slips = [_likeness(a, b) for a, b in zip(words, others, strict=True) if a != b]
            if len(slips) == 1 and slips[0] >= SIMILAR:
                yield slips[0], other


def _likeness(word: str, other: str) -> float:
    ratio = SequenceMatcher(None, word, other).ratio()
    short, long = sorted((word, other), key=len)
    return max(ratio, ABBREVIATED) if len(short) > 1 and long.startswith(short) else ratio
