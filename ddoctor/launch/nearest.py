"""The known name that a misspelt one was meant to be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

NEAR = 0.75
ALMOST = 0.9
"""A letter or two are wrong: what a file has for other readers may be alike by chance."""
OF_EVALUATION = re.compile(r"(?<![a-z])(?:eval|evaluation|test|val|validation)(?![a-z])")


def nearest(word: str, names: Collection[str]) -> str:
    """Of the names that are written alike, the nearest; else the only one with all its parts.

    An option that does not name the evaluation is of the training. Empty: there is none.
    """
    wanted = OF_EVALUATION.search(word) is not None
    known = [one for one in names if (OF_EVALUATION.search(one) is not None) is wanted]
    if alike := difflib.get_close_matches(word, known, 1, NEAR):
        return alike[0]
    parts = _parts(word)
    whole = [one for one in known if parts and parts <= _parts(one)]
    return max(whole) if len({frozenset(_parts(one)) for one in whole}) == 1 else ""


def almost(word: str, names: Collection[str]) -> str:
    """The name of which a letter or two are wrong; empty: there is none."""
    return next(iter(difflib.get_close_matches(word, names, 1, ALMOST)), "")


def _parts(name: str) -> set[str]:
    return {*filter(None, re.split(r"[-_.]", name))}
