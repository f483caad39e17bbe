"""Removes what might be a secret from text, command lines and sections.

It may remove too much: a value that is missing in a report costs little, a key in it costs a lot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

HIDDEN = "‹redacted›"
"""Replaces a value that might be a secret."""

SECRET_NAME = re.compile(
    r"(?:^|[_.-])(?:API[_.-]?)?(?:KEY|AUTH|PASS|PASSWD|PWD|PW|CREDS?|PAT)S?(?:[_.-]|$)"
    r"|TOKENS?(?:[_.-]|$)|SECRET|PASSWORD|PASSPHRASE|CREDENTIAL|APIKEY|AUTHORIZATION"
    r"|(?<=[a-z])(?-i:Key|Token|Auth)s?(?![a-z])",
    re.IGNORECASE,
)
"""The name of a variable or an option whose value is a secret; ``camelCase`` counts, too."""

NAME_IN_TEXT = re.compile(
    r"(?<![A-Za-z0-9])(?:TOKEN|PWD|AUTH|SIGNATURE)(?![A-Za-z0-9])"
    r"|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTHORIZATION|COOKIE"
    r"|(?:API|ACCESS|ACCOUNT|PRIVATE|AUTH|ENCRYPTION|SIGNING|WANDB|HF|AWS|SSH)[ _.-]?KEY"
    r"|(?<=[a-z])(?-i:Token|Auth)(?![A-Za-z])",
    re.IGNORECASE,
)
"""The same within a text. There a mere ``key`` is mostly that of a dictionary, or of attention."""

COUNTED = re.compile(r"(?:TOKENS|KEYS|SIZE|DIM|LENGTH|LEN|COUNT|IDS?|TYPE)$", re.IGNORECASE)
"""A name such as ``max-tokens``: a number behind it is none."""
OF_A_MODEL = re.compile(
    r"[_.](?:WEIGHT|BIAS|EMB|EMBED|EMBEDDINGS?|LAYERS?|HEADS?|PROJ|NORM|MASK|DROPOUT|TYPE_IDS)$",
    re.IGNORECASE,
)
"""A name such as ``token_embedding.weight``: nothing behind it is a secret."""
STRICT = re.compile(
    r"PASS|PWD|SECRET|CREDENTIAL|API|ACCESS|PRIVATE|AUTHORIZATION|COOKIE", re.IGNORECASE
)
"""A name that is no model's and no tokenizer's: what looks like theirs may be a secret."""
NOTHING = re.compile(r"none|null|true|false|\d*\.\d+", re.IGNORECASE)
NUMBER = re.compile(r"[\d.,_]*")
OF_A_TOKENIZER = re.compile(
    # A number that is no key, a special token, a call, an attribute.
    r"\d[\d.,_e+-]{0,8}|`?<[^<>\s]+>`?|\[[A-Z_]+\]|[A-Za-z_][\w.]*[(\[].*|[a-z_]+(?:\.[a-z_]+)+"
)

FORMS = re.compile(
    # The whole key, even where the text ends within it.
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)"
    # Three parts of a JSON Web Token, or its first one.
    r"|(?:\b|(?<=\dm))eyJ[\w-]{16,}(?:\.[\w-]*){0,2}"
    # A colour may stand before it.
    r"|(?:(?<![A-Za-z0-9])|(?<=\dm))(?:"
    # Hugging Face, GitHub, Stripe, npm, Groq, Replicate, RunPod, Docker, DigitalOcean, Notion.
    r"(?:hf|api_org|gh[pousr]|[srp]k_(?:live|test)|npm|gsk|r8|rpa|dckr_pat|dop_v1|ntn)_[A-Za-z0-9]{12,}"
    # GitHub, Weights & Biases, Together.
    r"|(?:github_pat|wandb_v1|tgp_v1)_\w{12,}"
    # OpenAI and others with sk-, GitLab, NVIDIA, Slack, Tailscale, PyPI.
    r"|sk-(?:(?:proj|ant|svcacct|admin|or|lf)-[\w-]{8,}|[A-Za-z0-9]{12,})"
    r"|(?:gl(?:pat|dt|rt|ptt|cbt|agent|soat)|nvapi|xox[abeoprs]|xapp|tskey)-[\w-]{12,}"
    r"|pypi-Ag[\w-]{8,}"
    # AWS, Google, Atlassian, Vault, SendGrid, Databricks, age.
    r"|(?:AKIA|ASIA)[0-9A-Z]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{12,}|ATATT3[\w-]{12,}"
    r"|hvs\.[\w-]{12,}|SG\.[\w-]{12,}\.[\w-]{12,}|dapi[0-9a-f]{30,}|AGE-SECRET-KEY-1[0-9A-Z]{12,})",
    re.DOTALL,
)
"""The forms in which services write their keys."""

USER = re.compile(r"(?<=://)(?:[^/\s'\"]*|[^/\s'\":@]*:(?!\d+/)[^\s'\"@]*)(?=@)")
"""User information of a URL; a password with a slash in it should be quoted, and is not always."""
SIGNED = re.compile(
    # Azure's signature; the incoming webhooks of Slack and Discord, of which the path is the key.
    r"(?<=[?&;]sig=)[^\s&'\"]+|(?<=hooks\.slack\.com/services/)[\w/]+"
    r"|(?<=/api/webhooks/)\d+/[\w-]+"
)
# Words in lower case, as in "basic blocks", are no keys.
BEARER = re.compile(
    r"\b((?:Bearer|Basic) +)(?=[^\s'\"][^\s'\"]*(?-i:[A-Z0-9=.]))[^\s'\"]{6,}", re.IGNORECASE
)

_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
NAMED = re.compile(
    # A name has a beginning: otherwise the time would grow with the square of a text's length.
    rf"((?<![\w.-])(?=[\w.-]*?(?:{NAME_IN_TEXT.pattern}))"
    r"(?:(?:API|ACCESS|PRIVATE) )?[A-Za-z_][\w.-]*)"
    # name=value, name: value, "name": "value", d["name"] = "value", name: str = "value".
    r"((?:\\{0,3}[\"']\]?)?\s{0,40}"
    r"(?::\s{0,4}(?:Optional\[)?(?:str|bytes|int|float|SecretStr)\]?(?:\s?\|\s?None)?\s{0,4}(?==))?"
    r"[=:](?!=)\s{0,40}"
    # put("name", "value")
    r"|[\"'],\s{0,4}(?=[\"']))"
    # An escaped quotation mark, or the scheme of a header.
    r"(\\*(?:(?:Bearer|Basic|Token|Digest) +)?)"
    rf"({_QUOTED}|[^\s,;&)\]}}'\"]+|(?<=\\)[\"'][^\"'\\]*)",
    re.IGNORECASE,
)
"""A name and a value within a text."""
OPTION = re.compile(rf"((?:^|(?<=\s))--?[A-Za-z][\w.-]*)([= ]+)(?![-\s])({_QUOTED}|\S+)")
"""An option of a command line within a text, with its value."""

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
# Their entries are named by what they hold: a commit, a layer of an image, a compiled kernel.
NAMED_BY_CONTENT = (
    *("snapshots", "blobs", "objects", "overlay2", "containers", "docker", "store"),
    *("cache", "triton", "fxgraph", "aotautograd"),
)
# So is what follows these.
DIGEST = re.compile(r"(?:\bcommit|\brevision|\bsha\d+)[ :=]{1,2}$", re.IGNORECASE)

# Fields that look random and are public: sections are matched by the names of their hosts.
KEPT = ("host", "hosts", "commit")

Kind = TypeVar("Kind")


def redact(section: Kind) -> Kind:
    """The same struct without secrets in any of its texts; the struct itself if it has none."""
    import msgspec  # A message about a broken installation passes `text`, too.

    plain = msgspec.to_builtins(section, builtin_types=(msgspec.Raw,))
    told = _value(plain)
    return section if told == plain else msgspec.convert(told, type(section))


def encoded(value: object) -> bytes:
    """The JSON of a value, also if a name in it is no UTF-8."""
    import msgspec

    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(redact(value))


def words(arguments: Iterable[str]) -> Iterator[str]:
    """A command line: ``--name value`` and ``name=value`` by the name, others by their form."""
    option = ""
    for word in arguments:
        name, equals, value = word.partition("=")
        # `sh -c "HF_TOKEN=… train"` has more than the value behind the name.
        if equals and _given(name, value) and (word.startswith("-") or " " not in value):
            yield f"{name}={HIDDEN}"
        elif option and not word.startswith("-") and _given(option, word):
            yield HIDDEN
        else:
            yield text(word)
        option = word if word.startswith("-") and not equals else ""


@lru_cache(maxsize=20_000)
def text(given: str) -> str:
    """A text without secrets, in characters that any file can hold; the rest is unchanged.

    A file's name may have bytes that are no UTF-8: they are written as ``\\xff``. Gone are known
    forms of keys, user information of URLs, values behind a name that says secret, and words above
    32 characters that look random.
    """
    if not given.isascii():
        given = _encodable(given)
    if len(given) < 6:
        return given
    told = FORMS.sub(HIDDEN, given)
    if "@" in told:
        told = USER.sub(HIDDEN, told)
    told = SIGNED.sub(HIDDEN, told)
    told = BEARER.sub(rf"\1{HIDDEN}", told)
    told = NAMED.sub(_named, told)
    told = OPTION.sub(_option, told)
    return LONG.sub(_long, told)


def _encodable(given: str) -> str:
    try:
        # Python reads such a byte as half of a character.
        return given.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:
        return given.encode(errors="backslashreplace").decode()


def _value(given: Any) -> Any:
    if isinstance(given, str):
        return text(given)
    if isinstance(given, dict):
        told = {name: _kept(one) if name in KEPT else _value(one) for name, one in given.items()}
        name, value = given.get("name"), given.get("value")
        if isinstance(name, str) and isinstance(value, str) and SECRET_NAME.search(name):
            told["value"] = HIDDEN
        return told
    if isinstance(given, (list, tuple)) and given:
        if all(isinstance(one, str) for one in given):
            return type(given)(words(given))
        if isinstance(given[0], (int, float)):
            return given
        return type(given)(map(_value, given))
    return given


def _kept(given: Any) -> Any:
    if isinstance(given, str):
        return _encodable(given)
    if isinstance(given, (list, tuple)):
        return type(given)(map(_kept, given))
    return _value(given)


def _given(name: str, value: str, names: re.Pattern[str] = SECRET_NAME) -> bool:
    """Whether a secret is given to the option, setting or variable of this name."""
    name, value = name.lstrip("-+"), value.strip("\"'")
    if not value or not names.search(name) or OF_A_MODEL.search(name) or NOTHING.fullmatch(value):
        return False
    if COUNTED.search(name) and NUMBER.fullmatch(value):
        return False
    return bool(STRICT.search(name)) or not OF_A_TOKENIZER.fullmatch(value)


def _named(found: re.Match[str]) -> str:
    name, between, scheme, value = found.groups()
    if value == HIDDEN or not _given(name, value, NAME_IN_TEXT):
        return found.group()
    return f"{name}{between}{scheme}{HIDDEN}"


def _option(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    return f"{name}{between}{HIDDEN}" if _given(name, value) else found.group()


def _long(found: re.Match[str]) -> str:
    whole = found.group()
    if DIGEST.search(found.string, max(0, found.start() - 12), found.start()):
        return whole
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
    common = sum(one + other in PAIRS for one, other in pairwise(bare))
    return common < bound * len(bare) and len(set(bare)) >= 9
