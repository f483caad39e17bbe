from __future__ import annotations

import msgspec

from ddoctor.evidence.live import BuildLock, BuildLocks, LiveLook
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall, SourceLine
from ddoctor.live.redact import redacted
from tests.live_look import block, in_collective, look, moving

LOOP = (block(1, 60, "for batch in loader:"),)


def plain(live: LiveLook) -> str:
    return msgspec.json.encode(live).decode()


def test_no_path_is_left_and_the_rest_is() -> None:
    live = look(in_collective(0, "barrier", 22, LOOP), moving(1))
    live = msgspec.structs.replace(live, command=("/home/me/run/train.py", "--data=/data/x", "3"))
    short = redacted(live)
    assert short.command == ("train.py", "--data=x", "3")
    calling, inner = short.ranks[0].stack
    assert calling.file == short.ranks[0].activities[0].within[0].file == "train.py"
    assert inner.file == "torch/distributed/distributed_c10d.py"
    assert (calling.line, calling.text, calling.of_user) == (22, "dist.barrier(loss)", True)
    assert "/home/" not in plain(short)
    assert short.ranks[1].activities[0].samples == live.ranks[1].activities[0].samples


def test_what_else_names_a_place() -> None:
    lock = BuildLock(path="/home/me/extensions/fused_adam/lock", age_seconds=3.0)
    assert redacted(BuildLocks(locks=(lock,))).locks[0].path == "lock"


def test_what_is_short_already_stays() -> None:
    short = redacted(look(moving(0), moving(1)))
    assert redacted(short) == short


def test_the_source_of_the_script() -> None:
    at = SourceLine(file="jobs/train.py", line=3, text='data = load("/home/me/secret/rows.json")')
    called = SourceCall(name="load", at=at, keywords={"rows": '"/home/me/secret/rows.json"'})
    short = redacted(Script(files=("jobs/train.py", "jobs/model.py"), calls=(called,)))
    assert short.files == ("train.py", "model.py")
    assert short.calls[0].at.file == "train.py"
    assert short.calls[0].keywords == {"rows": '"rows.json"'}
    assert "secret" not in msgspec.json.encode(short).decode()
