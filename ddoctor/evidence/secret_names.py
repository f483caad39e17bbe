"""Names that say secret: of options, variables, settings, fields and headers."""

from __future__ import annotations

import re

SECRET_NAME = re.compile(
    r"(?:^|[_.-])(?:API[_.-]?)?(?:KEY|AUTH|PASS|PASSWD|PWD|PW|CREDS?|PAT)S?(?:[_.-]|$)"
    r"|TOKENS?(?:[_.-]|$)|SECRET(?!AR)|PASS[_-]?WORD|PASSPHRASE|CREDENTIAL|APIKEY|AUTHORIZATION"
    r"|(?:^|[_.-])(?:BEARER|JWT)$"
    r"|(?<=[a-z])(?-i:Key|Token|Auth)s?(?![a-z])",
    re.IGNORECASE,
)
"""The name of a variable or an option whose value is a secret; ``camelCase`` counts, too."""

NAME_IN_TEXT = re.compile(
    r"(?<![A-Za-z0-9])(?:TOKEN|PWD|AUTH|SIGNATURE|BEARER|JWT)(?![A-Za-z0-9])"
    r"|SECRET(?!AR)|PASS[_-]?WORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTHORIZATION|COOKIE"
    r"|(?-i:(?<=[A-Z]_)KEY)(?![A-Za-z0-9])"
    r"|(?:API|ACCESS|ACCOUNT|PRIVATE|AUTH|ENCRYPTION|SIGNING|WANDB|HF|AWS|SSH)[ _.-]?KEY"
    r"|(?<=[a-z])(?-i:Token|Auth|Signature)(?![A-Za-z])",
    re.IGNORECASE,
)
"""The same within a text. There a mere ``key`` is mostly that of a dictionary, or of attention."""

COUNTED = re.compile(r"(?:TOKENS|KEYS|SIZE|DIM|LENGTH|LEN|COUNT|IDS?|TYPE)$", re.IGNORECASE)
"""A name such as ``max-tokens``: a number behind it is none."""
OF_A_MODEL = re.compile(
    r"[_.](?:WEIGHT|BIAS|EMB|EMBED|EMBEDDINGS?|LAYERS?|HEADS?|PROJ|NORM|MASK|DROPOUT|TYPE_IDS)$"
    r"|(?:^|[_.-])(?:BOS|EOS|PAD|SEP|CLS|UNK|MASK)[_-]TOKEN$",
    re.IGNORECASE,
)
"""A name such as ``token_embedding.weight`` or ``pad_token``: nothing behind it is a secret."""
STRICT = re.compile(
    r"PASS|PWD|SECRET|CREDENTIAL|API|ACCESS|PRIVATE|AUTHORIZATION|COOKIE|ACCOUNT|CLIENT|REFRESH|BEARER|JWT"
    r"|(?<![A-Za-z])(?:HF|GH|AWS)(?![A-Za-z])|HUB|GITLAB|WANDB|SLACK|LICENSE|ENCRYPTION",
    re.IGNORECASE,
)
"""A name that is no model's and no tokenizer's: what looks like theirs may be a secret."""
QUOTES = re.compile(r"^(?:[rbu]{1,2}(?=[\"']))?[\"']+|[\"']+$", re.IGNORECASE)
NOTHING = re.compile(r"none|null|true|false|\d*\.\d+|str|bytes|int|float|bool", re.IGNORECASE)
NUMBER = re.compile(r"[\d.,_]*")
OF_A_TOKENIZER = re.compile(
    # A number that is no key, a special token, a call, an attribute.
    r"\d[\d.,_e+-]{0,8}[kMBGT]?|`?<[^<>\s]+>`?|\[[A-Z_]+\]|[A-Za-z_][\w.]*[(\[].*|[a-z_]+(?:\.[a-z_]+)+"
)


def is_secret(name: str, value: str, names: re.Pattern[str] = SECRET_NAME) -> bool:
    """Whether a secret is given to the option, setting or variable of this name."""
    name, value = name.lstrip("-+~"), QUOTES.sub("", value)
    if not value or not names.search(name) or OF_A_MODEL.search(name) or NOTHING.fullmatch(value):
        return False
    # `token=args.token` stands in source code.
    if value.rpartition(".")[2] == name.rpartition(".")[2]:
        return False
    if COUNTED.search(name) and NUMBER.fullmatch(value):
        return False
    return bool(STRICT.search(name)) or not OF_A_TOKENIZER.fullmatch(value)
