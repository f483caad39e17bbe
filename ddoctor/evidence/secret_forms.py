"""The forms in which services write their keys, and where a URL or a header has one."""

from __future__ import annotations

import re

HIDDEN = "‹redacted›"
"""Replaces a value that might be a secret."""

START = r"(?:(?<![A-Za-z0-9])|(?<=\dm)|(?<=%[0-9A-Fa-f]{2})|(?<=\\[nrt])|(?<=\\x[0-9a-f]{2}))"
"""The beginning of a word; a colour, a quoted or an escaped character may stand before it."""
FORMS = re.compile(
    # The whole key, even where the text ends within it.
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)"
    # A JSON Web Token of three parts or, encrypted, five; its first part; JSON in base64.
    rf"|{START}eyJ[\w-]{{10,}}(?:[+/][\w-]{{12,}})*={{0,2}}(?:[._][\w-]*)*"
    rf"|{START}(?:"
    # Hugging Face, GitHub, Stripe, npm, Groq, Replicate, RunPod, DigitalOcean, Notion, and others.
    r"(?:hf|api_org|gh[pousr]|[srp]k_(?:live|test)|whsec|npm|gsk|r8|rpa|do[opr]_v1|ntn"
    r"|ph[cx]|lin_api|shp(?:at|ca|pa|ss)|esecret)_[A-Za-z0-9]{12,}"
    # Fireworks, Jina, whose prefixes also begin names in code.
    r"|(?:fw|jina)_(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}"
    # GitHub, Docker, Weights & Biases, Together, LangSmith, Pinecone, Grafana, Sentry, Kaggle.
    r"|(?:github_pat|dckr_[po]at|wandb_v1|tgp_v1|lsv2_[ps][tk]|pcsk|glsa|sntry[su]|KGAT|figd|pscale_\w+?)"
    r"_[\w-]{12,}"
    # OpenAI and others with sk-, GitLab, NVIDIA, Slack, Tailscale, PyPI.
    r"|sk-(?:(?:proj|ant|svcacct|admin|or|lf)-[\w-]{8,}|[A-Za-z0-9]{12,}"
    r"|(?=[\w-]{0,50}[A-Z])(?=[\w-]{0,50}\d)[\w-]{20,})"
    r"|gl(?:pat|dt|rt|rtr|ptt|cbt|ft|imt|oas|agent|soat|ffct)-[\w-]{12,}(?:\.\w{2}\.\w{9})?"
    r"|GR1348941[\w-]{12,}|(?:nvapi|xai|pplx|csk|xox[abeoprs]|xapp|tskey|NRAK|GOCSPX)-[\w-]{12,}"
    r"|xoxe\.xox[bp]-[\w-]{12,}|tvly-(?:dev-|prod-)?[A-Za-z0-9]{12,}|pypi-Ag[\w-]{8,}"
    # Modal, Mailgun, Twilio, Telegram, Azure.
    r"|a[ks]-(?=[A-Za-z]*\d)(?=[a-z0-9]*[A-Z])[A-Za-z0-9]{20,}|key-[0-9a-f]{32}|SK[0-9a-f]{32}"
    r"|\d{8,10}:AA[\w-]{33}|[\w~.-]{3}\dQ~[\w~.-]{31,34}"
    # AWS, Google, Atlassian, Vault, Terraform, SendGrid, Databricks, age.
    r"|A(?:KI|SI|BI|CC)A[0-9A-Z]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{12,}|1//0[\w-]{30,}|AQ\.Ab[\w-]{20,}"
    r"|AT[AC]TT3[\w-]{12,}|ATBB[A-Za-z0-9]{24,}|hv[bs]\.[\w-]{12,}|[A-Za-z0-9]{14}\.atlasv1\.[\w-]{20,}"
    r"|SG\.[\w-]{12,}\.[\w-]{12,}|dapi[0-9a-f]{30,}|AGE-SECRET-KEY-1[0-9A-Z]{12,})",
    re.DOTALL,
)
"""The forms in which services write their keys."""

USER = re.compile(r"(?<=://)(?:[^/\s'\"]*|[^/\s'\":@]*:(?!\d+/)[^\s'\"@]*)(?=@)")
"""User information of a URL; a password with a slash in it should be quoted, and is not always."""
SIGNED = re.compile(
    # Azure's signature, Google's key; webhooks of Slack and Discord, whose path is the key.
    r"(?<=[?&;](?:sig|key)=)[^\s&'\"]+|(?<=hooks\.slack\.com/services/)[\w/]+"
    r"|(?<=/api/webhooks/)\d+/[\w-]+"
)
# Words in lower case, as in "basic blocks", are no keys.
BEARER = re.compile(
    r"\b((?:Bearer|Basic) +)(?=[^\s'\"][^\s'\"]*(?-i:[A-Z0-9=.]))[^\s'\"]{6,}", re.IGNORECASE
)
