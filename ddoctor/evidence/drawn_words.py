"""Long words that look drawn at random, as keys do, and not written by a person."""

from __future__ import annotations

import re
from itertools import pairwise

from ddoctor.evidence.secret_forms import HIDDEN

# The most frequent pairs of letters in English, about 8 of 10 (P. Norvig, English Letter
# Frequency Counts, 2013).
PAIRS = (
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve "
    "co me de hi ri ro ic ne ea ra ce li ch ll be ma si om ur ca el ta la ns di fo ho pe ec pr no "
    "ct us ac ot il tr ly nc et ut ss so rs un lo wa ge ie wh ee wi em ad ol rt po we na ul ni ts "
    "mo ow pa im mi ai sh ir su id os iv ia am fi ci vi pl ig tu ev ld ry mp fe bl ab gh ty op wo "
    "sa ay ex ke fr oo av ag if ap gr od bo sp rd do uc bu ei ov by rm ep tt oc"
)
# GPUs and pods are named by one.
UUID = re.compile(r"(?:[A-Za-z]{3}-?)?[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}")
HEX = re.compile(r"[0-9a-f]+")
LONG = re.compile(r"[A-Za-z0-9_+/-]{33,}={0,2}")
MIXED = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{20,32}(?![A-Za-z0-9])")
# Of a C++ function, up to here.
MANGLED = re.compile(r"(?<!\w)_Z\w*$", re.ASCII)
# Their entries are named by what they hold: a commit, a layer of an image, a compiled kernel.
NAMED_BY_CONTENT = (
    *("snapshots", "blobs", "objects", "overlay2", "containers", "docker", "store"),
    *("cache", "triton", "fxgraph", "aotautograd"),
)
# So is what follows these.
DIGEST = re.compile(r"(?:\bcommit|\brevision|\bsha\d+)[ :=]{1,2}$", re.IGNORECASE)


def hide(given: str) -> str:
    """The text without them; what a person or a hash of contents named stays."""
    return MIXED.sub(_mixed, LONG.sub(_long, given))


def _mixed(found: re.Match[str]) -> str:
    """Of drawn letters and digits in both cases, most neighbours are of different kinds.

    Among 82,000 words of this length in the sources of torch, transformers and others, 225 look so,
    all of them data in base64 or hashes; one of ten drawn words does not.
    """
    word = found.group()
    kinds = [one.isdigit() + 2 * one.isupper() for one in word]
    changes = sum(one != other for one, other in pairwise(kinds))
    few = min(map(kinds.count, range(3))) < 2
    if few or changes < 0.4 * len(word) or _common(word.lower()) >= 0.36 * len(word):
        return word
    before = found.string[max(0, found.start() - 300) : found.start() + 1]
    return word if MANGLED.search(before) else HIDDEN


def _long(found: re.Match[str]) -> str:
    whole = found.group()
    if DIGEST.search(found.string, max(0, found.start() - 12), found.start()):
        return whole
    # A path has no plus, and does not end so.
    if ("+" in whole or whole.endswith("=")) and _random(re.sub("[/+=]", "", whole), 0.36):
        return HIDDEN
    parts = whole.split("/")
    named = [_named_by_content(part, before) for before, part in pairwise(["", *parts])]
    told = [
        HIDDEN if _random(part) and not by_content else part
        for part, by_content in zip(parts, named, strict=True)
    ]
    # Base64 has slashes, too; a path has names between them.
    if (
        told == parts
        and len(parts) > 1
        and not any(named)
        and _random(whole.replace("/", ""), 0.36)
    ):
        return HIDDEN
    return "/".join(told)


def _named_by_content(part: str, before: str) -> bool:
    # torch's compiler puts what it calls cab… into a folder ab; a container lies in its pod.
    compiled = len(before) == 2 and part[1:3] == before
    return compiled or before in NAMED_BY_CONTENT or bool(UUID.fullmatch(before))


def _random(word: str, bound: float = 0.43) -> bool:
    """Whether a word above 32 characters was drawn rather than written.

    Of the neighbouring characters of English and of names in code, 6 in 10 or more are pairs of
    ``PAIRS``; of drawn letters 2 in 10.
    """
    bare = re.sub(r"[_-]", "", word).lower()
    if UUID.fullmatch(word):
        return False
    # Names of C++ functions are mangled; other names have a separator each few characters.
    if len(word) <= 32 or word.startswith("_Z") or 8 * (len(word) - len(bare)) > len(word):
        return False
    if HEX.fullmatch(bare):
        return 3 <= sum(map(str.isdigit, bare)) <= len(bare) - 3
    return _common(bare) < bound * len(bare) and len(set(bare)) >= 9


def _common(word: str) -> int:
    return sum(one + other in PAIRS for one, other in pairwise(word))
