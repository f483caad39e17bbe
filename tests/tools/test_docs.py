from __future__ import annotations

import pytest

from tools import docs


@pytest.mark.parametrize("name", docs.PAGES)
def test_the_committed_page_is_the_one_of_the_code(name: str) -> None:
    assert (docs.DOCS / name).read_text() == docs.PAGES[name](), "run `make docs`"


def test_a_page_names_units_commands_and_checks() -> None:
    page = docs.evidence()
    shared = page[page.index("## shared-memory") :]
    shared = shared[: shared.index("\n## ")]
    assert "Made by `doctor`, `probe`" in shared
    assert "Needed by `shm-too-small`" in shared
    assert "| `size` | `int` |" in shared
