"""The forms in which services write their keys, and where a URL or a header has one."""

from __future__ import annotations

import re

HIDDEN = "‹redacted›"
"""Replaces a value that might be a secret."""

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
