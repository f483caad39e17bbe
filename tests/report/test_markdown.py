from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from ddoctor.report import markdown
from tests.report import sample


def text(name: str) -> str:
    return markdown.render(*sample.SAMPLES[name]())


@pytest.mark.parametrize("name", sample.SAMPLES)
def test_tables_have_as_many_cells_in_every_row(name: str) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", text(name), re.MULTILINE):
        rows = table.splitlines()
        assert len(rows) > 2 or "examined" in rows[0]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1, table


def test_it_follows_the_order_of_the_report() -> None:
    page = text("sick")
    places = [
        page.index(words)
        for words in (
            "# ddoctor: 3 findings",
            "| all-reduce |",
            "## 1. error:",
            "## 2. warning:",
            "## 4. note:",
            "## Skipped",
            "## GPUs of node-1",
        )
    ]
    assert places == sorted(places)


def test_fixes_are_fenced_in_their_language() -> None:
    assert "```yaml\nenv:\n  - name: NCCL_SOCKET_IFNAME\n    value: eth0\n```\n" in text("sick")


def test_a_fence_is_longer_than_any_in_it() -> None:
    assert "````sh\n" in text("hostile")
    assert "\n```\n</code>\n````\n" in text("hostile")


def test_nothing_that_a_machine_says_acts_as_markdown() -> None:
    outside = re.sub(r"^(`{3,}).*?^\1$", "", text("hostile"), flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"(?<!\\)<script", outside)
    assert r"\[link\](http" in outside
    assert r"\*\*bold\*\*" in outside
    assert "`a|b`" in outside


def test_github_makes_no_link_of_plain_words() -> None:
    told = markdown._text("https://x.example www.x.example me@x.example @somebody issue #12 `lone")
    joiner = "\N{WORD JOINER}"
    assert told == (
        rf"https:\//x.example www\.x.example me@{joiner}x.example @{joiner}somebody "
        rf"issue \#{joiner}12 \`lone"
    )
    assert markdown._text("`https://x.example`") == "`https://x.example`"


def test_an_entity_is_shown_as_it_is_written() -> None:
    """Decoded, it would be a mention or an address."""
    told = markdown._text("&commat;somebody me&commat;x.example &lt;b&gt; GH-12")
    joiner = "\N{WORD JOINER}"
    assert told == (rf"\&commat;somebody me\&commat;x.example \&lt;b\&gt; GH-{joiner}12")
    assert MarkdownIt("commonmark").renderInline(told).startswith("&amp;commat;somebody")


def test_two_hosts_have_a_table() -> None:
    assert "| host | system | CPUs | memory | GPUs | software | /dev/shm |" in text("two-hosts")
    assert "## Hosts" not in text("sick")
