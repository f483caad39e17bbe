"""What may end a loop, other than the end of its data."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from ddoctor.loop_exits import Loop, decides


def loop(source: str) -> Loop:
    node = ast.parse(dedent(source)).body[0]
    assert isinstance(node, Loop)
    return node


@pytest.mark.parametrize(
    "source",
    [
        "for x in data:\n  if loss < best: break",
        "for x in data:\n  with lock:\n    if loss < best: return loss",
        "for x in data:\n  for y in x:\n    return y",
        "for n in range(most):\n  if n > first and stopper.stops(loss): break",
        "while not stopper.done:\n  step()",
        "while True:\n  if step(): break",
    ],
)
def test_a_rank_may_decide_it(source: str) -> None:
    assert decides(loop(source))


@pytest.mark.parametrize(
    "source",
    [
        "for x in data:\n  step(x)",
        "for n, x in enumerate(data):\n  if n >= most: break",
        "for n in range(most):\n  if args.most and n >= args.most: break",
        "for n in range(most):\n  if n >= least and not args.all: break",
        "while step < most:\n  step += 1",
        "while True:\n  try: x = next(data)\n  except StopIteration: break",
        # The exits of what is inside.
        "for x in data:\n  for y in x:\n    if y: break",
        "for x in data:\n  def last(y): return y",
        "for x in data:\n  if bad(x): continue",
    ],
)
def test_all_ranks_leave_it_alike(source: str) -> None:
    assert not decides(loop(source))
