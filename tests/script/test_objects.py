"""Objects that other modules of a script make, pass on, or derive from."""

from __future__ import annotations

import pytest

from tests.script.conftest import Review
from tests.script.sources import ddp

PEERS = """
    import torch.distributed as dist

    class Base:
        def agree(self, value):
            dist.all_reduce(value)
            return value

    class Peers(Base):
        @classmethod
        def made(cls):
            return cls()

    EVERYONE = Peers()
"""
PASSED_ON = "from tools.peers import EVERYONE, Peers\n"


@pytest.mark.parametrize(
    ("head", "loader", "call", "told"),
    [
        ("from tools import EVERYONE", "", "EVERYONE.agree(loss)", True),
        ("import tools", "", "tools.EVERYONE.agree(loss)", True),
        ("from tools import peers", "", "peers.Peers.made().agree(loss)", True),
        ("from tools import Peers", "team = Peers()", "team.agree(loss)", True),
        ("from tools import Peers", "team = Peers()", "team.agree", False),
        ("from tools import Peers", "team = other(Peers)", "team.agree(loss)", False),
        ("from elsewhere import EVERYONE", "", "EVERYONE.agree(loss)", False),
    ],
)
def test_an_object_of_another_module(
    review: Review, head: str, loader: str, call: str, told: bool
) -> None:
    source = ddp(head=f"{head}\n{loader}", epoch=f"if dist.get_rank() == 0:\n    {call}")
    modules = {"tools/__init__.py": PASSED_ON, "tools/peers.py": PEERS}
    assert ("rank0-only-collective" in review(source, modules)) is told
