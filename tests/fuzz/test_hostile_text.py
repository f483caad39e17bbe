"""What a machine says about itself is shown, and does nothing."""

from __future__ import annotations

import io
import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html.parser import HTMLParser
from random import Random

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from ddoctor import engine
from ddoctor.characters import STEERING
from ddoctor.evidence.host import Cpus
from ddoctor.evidence.section import Evidence
from ddoctor.models import Report
from ddoctor.report import html, markdown, terminal
from tests.fuzz import seeds
from tests.fuzz.hostile import said_by

SHARES = (1.0, 0.3)
SHORT = ("attach", "plan", "failed-rank")
ACTING = {"a", "img", "iframe", "object", "embed", "form", "input", "base", "video", "audio"}
LOADING = {"href", "src", "action", "formaction", "xlink:href", "data", "srcset", "poster"}
# As cmark-gfm's extension "autolink" begins one: raw text outside of code.
BARE = re.compile(r"(https?|ftp)://|\bwww\.|[\w.+-]+@[\w-]|#\d", re.IGNORECASE)


@cache
def judged(name: str, share: float) -> tuple[Report, Evidence]:
    evidence = said_by(seeds.evidence()[name], Random(f"{name} {share}"), share)
    return engine.examine(evidence, "diagnose"), evidence


class Elements(HTMLParser):
    """The elements of a page, their attributes, and the content of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.scripts: list[str] = []
        self.policy = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.names.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)


def check_page(name: str, share: float) -> None:
    page = html.render(*judged(name, share))
    found = Elements(page)
    assert not found.names & ACTING
    assert not any(name.startswith("on") for name, _ in found.attributes)
    loads = [value for name, value in found.attributes if name in LOADING]
    assert all(value.startswith(("data:", "#")) for value in loads)
    (script,) = found.scripts
    own = b64encode(sha256(script.encode()).digest()).decode()
    sources = dict(part.split(" ", 1) for part in found.policy.split("; "))
    assert sources["script-src"] == f"'sha256-{own}'"
    assert sources["default-src"] == "'none'"
    assert not STEERING.search(page)


def check_terminal(name: str, share: float) -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    terminal.render(*judged(name, share), Console(file=plain, width=100))
    assert not STEERING.search(plain.getvalue())
    terminal.render(
        *judged(name, share), Console(file=coloured, width=100, force_terminal=True, no_color=False)
    )
    # What rich sends itself: colours and weights.
    assert not STEERING.search(re.sub(r"\x1b\[[\d;]*m", "", coloured.getvalue()))


def check_markdown(name: str, share: float) -> None:
    page = markdown.render(*judged(name, share))
    assert not STEERING.search(page)
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(page)
    inline = [one for token in tokens for one in token.children or ()]
    kinds = {one.type for one in (*tokens, *inline)}
    assert not kinds & {"link_open", "image", "html_block", "html_inline"}
    # Outside of code, GitHub makes links of bare addresses.
    outside = re.sub(r"^(`{3,}).*?^\1$", "", page, flags=re.MULTILINE | re.DOTALL)
    bare = BARE.findall(re.sub(r"`[^`\n]+`", "", outside.replace(r"\`", "")))
    assert not bare


def test_the_markup_of_rich_is_text() -> None:
    shown = io.StringIO()
    evidence = Evidence([Cpus(host="[red]x[/red]", model="[/]", logical=2, allowed=(0, 1))])
    terminal.render(engine.examine(evidence, "diagnose"), evidence, Console(file=shown, width=100))
    assert "[red]x[/red]" in shown.getvalue()
    assert "[/]" in shown.getvalue()


CHECKS = {"page": check_page, "terminal": check_terminal, "markdown": check_markdown}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", SHORT)
def test_no_text_acts(name: str, check: str) -> None:
    CHECKS[check](name, 0.3)


@pytest.mark.ward
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", seeds.evidence())
def test_no_text_acts_in_any_report(name: str, share: float, check: str) -> None:
    CHECKS[check](name, share)
