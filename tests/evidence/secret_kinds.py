"""Random secrets in the forms in which they are met."""

from __future__ import annotations

import base64
import string
from collections.abc import Callable
from random import Random

LETTERS = string.ascii_letters + string.digits


def _drawn(characters: str, length: int) -> Callable[[Random], str]:
    return lambda random: "".join(random.choices(characters, k=length))


def _form(before: str, length: int, characters: str = LETTERS) -> Callable[[Random], str]:
    return lambda random: before + _drawn(characters, length)(random)


def _web_token(random: Random) -> str:
    claims = base64.urlsafe_b64encode(random.randbytes(40)).decode().rstrip("=")
    return f"eyJhbGciOiJIUzI1NiJ9.{claims}.{_drawn(LETTERS + '-_', 43)(random)}"


KNOWN = {
    "hugging face": _form("hf_", 34),
    "github": _form("ghp_", 36),
    "github, fine-grained": _form("github_pat_", 60),
    "gitlab": _form("glpat-", 20),
    "gitlab, runner": _form("glrt-", 20),
    "openai": _form("sk-proj-", 40, LETTERS + "-_"),
    "anthropic": _form("sk-ant-api03-", 40, LETTERS + "-_"),
    "npm": _form("npm_", 36),
    "pypi": _form("pypi-AgEIcHlwaS5vcmc", 60, LETTERS + "-_"),
    "docker": _form("dckr_pat_", 24, LETTERS),
    "runpod": _form("rpa_", 32, string.ascii_uppercase + string.digits),
    "vault": _form("hvs.CAES", 24),
    "databricks": _form("dapi", 32, "0123456789abcdef"),
    "stripe": _form("sk_live_", 24),
    "slack": _form("xoxb-", 30, string.digits + "-"),
    "aws": _form("AKIA", 16, string.ascii_uppercase + string.digits),
    "google": _form("AIza", 35, LETTERS + "-_"),
    "web token": _web_token,
    "web token, encrypted": lambda random: f"eyJhbGciOiJkaXIifQ..{_drawn(LETTERS, 22)(random)}",
    "gitlab, routable": lambda random: (
        f"{_form('glpat-', 27)(random)}.01.{_drawn(LETTERS, 9)(random)}"
    ),
    "docker, organisation": _form("dckr_oat_", 32),
    "azure": lambda random: (
        f"{_drawn(LETTERS, 3)(random)}8Q~{_drawn(LETTERS + '-_~.', 34)(random)}"
    ),
    "terraform": lambda random: (
        f"{_drawn(LETTERS, 14)(random)}.atlasv1.{_drawn(LETTERS, 60)(random)}"
    ),
    "telegram": lambda random: f"{random.randrange(10**8, 10**9)}:AA{_drawn(LETTERS, 33)(random)}",
    "google, client": _form("GOCSPX-", 28, LETTERS + "-_"),
    "xai": _form("xai-", 80),
    "new relic": _form("NRAK-", 27, string.ascii_uppercase + string.digits),
    "mailgun": _form("key-", 32, "0123456789abcdef"),
}
"""Told by their form alone."""

DRAWN = {
    "hex": _drawn("0123456789abcdef", 40),
    "letters and digits": _drawn(LETTERS, 44),
    "base64": _drawn(LETTERS + "+/", 48),
    "base64 with its end": lambda random: f"+{_drawn(LETTERS + '+/', 85)(random)}==",
    "base32": _drawn(string.ascii_uppercase + "234567", 52),
}
"""Told by their length and looks."""

SHORT = {"password": _drawn(LETTERS, 12), "with signs": _drawn(LETTERS + "!#%*", 14)}
"""Told by the name before them alone."""
