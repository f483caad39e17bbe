from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from ddoctor.report import html
from tests.report import machines, sample

STYLE = Path(html.__file__).with_name("page.css.j2").read_text()
READABLE = 4.5
"""Contrast that WCAG 2.2 asks of text (level AA)."""


@cache
def _source(name: str) -> str:
    return html.render(*sample.SAMPLES[name]())


class Page(HTMLParser):
    """The elements of a page, and the text outside of script and style."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.source = _source(name)
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(params=sample.SAMPLES)
def page(request: pytest.FixtureRequest) -> Page:
    return Page(request.param)


def test_it_names_nothing_outside_itself(page: Page) -> None:
    for _, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action", "srcset", "poster", "data"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:,")), attributes
    assert not re.search(r"@import|url\((?!#)", page.source)


def test_it_runs_its_own_script_only(page: Page) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page.source, re.DOTALL)
    assert page.all("script") == [{}]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy
    assert not [name for _, attributes in page.elements for name in attributes if name[:2] == "on"]


def test_ids_are_unique_and_those_referred_to_exist(page: Page) -> None:
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for name in ("aria-labelledby", "data-of"):
            assert attributes.get(name) in (None, *ids)


def test_headings_skip_no_level(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_tables_have_headers_with_a_scope(page: Page) -> None:
    assert all(header.get("scope") in ("row", "col") for header in page.all("th"))
    assert len(page.all("table")) <= len(page.all("th"))


def test_hostile_text_is_only_text() -> None:
    page = Page("hostile")
    assert machines.HOSTILE not in page.source
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;" in page.source


def test_nothing_turns_the_direction_of_writing_or_breaks_the_encoding() -> None:
    source = Page("hostile").source
    assert not re.search("[\x1b\u202e]", source)
    assert source.encode().decode() == source


def test_charts_take_their_colours_from_the_page() -> None:
    page = Page("sick")
    charts = re.findall(r"<svg.*?</svg>", page.source, re.DOTALL)
    assert len(charts) == 2
    for chart in charts:
        assert not re.search(r"#[0-9a-f]{6}", chart)
        assert "var(--accent)" in chart
        assert ">1 GiB</text>" in chart
    (figure,) = page.all("figure")
    assert "289 GB/s at 1 GiB" in (figure["aria-label"] or "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("ground", ["page", "raised"])
@pytest.mark.parametrize(
    "colour", ["ink", "muted", "accent", "expected", "error", "warning", "note", "healthy"]
)
def test_text_is_readable(scheme: str, ground: str, colour: str) -> None:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]
    values = dict(re.findall(r"--(\w+): #(\w{6})", light if scheme == "light" else dark))
    assert contrast(values[colour], values[ground]) >= READABLE


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of the luminance of two colours."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    shares = (int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4))
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_rank_apart_is_told_in_figures() -> None:
    assert "405 −43&nbsp;%" in Page("sick").source
    assert "behind" not in Page("healthy").source.partition("</style>")[2]


def test_the_gpu_table_shows_what_differs() -> None:
    source = Page("sick").source
    assert '<td class="odd">1095</td>' in source
    assert '<td class="odd">heat</td>' in source
    assert "<dt>PCIe</dt><dd>5 ×16</dd>" in source
