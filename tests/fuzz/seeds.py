"""The inputs that are changed: bundles of each command, sound, filled and real, and sick ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ddoctor.evidence import bundle
from ddoctor.evidence.cluster_probes import ArmTurn, ControlArm, ControlArms
from ddoctor.evidence.section import Evidence
from tests import memory_snapshot
from tests.fuzz.filled import filled
from tests.healthy import COMMANDS, healthy
from tests.report import sample
from tests.whole_run import HISTORY

SICK = ("sick", "two-hosts", "incomplete", "late-rank", "slow-loader", "failed-rank")
"""Of the reports to show: findings have other words, charts and tables than sound runs have."""
RECORDED = Path(__file__).parent / "recorded"
"""Bundles that commands wrote on a machine with 2 CPUs: `run` of four scripts of the ward (a slow
loader, a loop by hand, a stream, FSDP2), `attach`, `probe` and `doctor`."""
ARMS = ControlArms(
    arms=(
        ControlArm(
            environment=("NCCL_ALGO=Ring",),
            hosts=("node-1",),
            bytes=2**28,
            without=(ArmTurn(rate=10.0), ArmTurn(failure="a rank is missing")),
            with_it=(ArmTurn(rate=12.0), ArmTurn(rate=12.5)),
        ),
    )
)


@cache
def bundles() -> dict[str, bytes]:
    """Each bundle by its name, as JSON."""
    return {name: _document(found) for name, found in evidence().items()}


@cache
def evidence() -> dict[str, Evidence]:
    """The evidence of each bundle."""
    return dict(_evidence())


def _evidence() -> Iterator[tuple[str, Evidence]]:
    for command in COMMANDS:
        yield command, healthy(command)
        yield f"{command}, filled", Evidence(map(filled, healthy(command)))
    for name in SICK:
        yield name, sample.SAMPLES[name]()[1]
    yield "whole run", healthy("run").with_sections(HISTORY)
    yield "arms", healthy("probe").with_sections(ARMS)
    for path in sorted(RECORDED.iterdir()):
        yield f"recorded {path.stem}", bundle.read(path)


def _document(found: Evidence) -> bytes:
    document: dict[str, Any] = {
        "schema": 1,
        "ddoctor": "0",
        "created": "2026-11-20T03:04:05+00:00",
        "sections": list(found),
    }
    return msgspec.json.encode(document)


CONFIGS: tuple[dict[str, Any], ...] = (
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 100,
        "max_position_embeddings": 16,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
    },
    {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.1,
        "id2label": {"0": "good", "1": "bad"},
    },
)
"""Of models that are planned in a second."""


def dump() -> dict[str, Any]:
    """The records of a rank, as torch's flight recorder writes them."""
    frame = {"name": "train", "filename": "/home/user/train.py", "line": 40}
    return {
        "version": "2.10",
        "entries": [
            {
                "collective_seq_id": number,
                "process_group": ["0", "default_pg"],
                "profiling_name": "nccl:all_reduce",
                "state": "completed" if number < 20 else "started",
                "time_created_ns": 1_763_600_000_000_000_000 + number,
                "is_p2p": False,
                "retired": number < 20,
                "input_sizes": [[1000, 8]],
                "input_dtypes": ["Float"],
                "frames": [frame, frame],
            }
            for number in range(24)
        ],
    }


def snapshot() -> dict[str, Any]:
    """The memory of a rank that ran out of it, as torch's allocator writes it."""
    made = memory_snapshot.Allocator()
    made.alloc(20 * memory_snapshot.GIB, memory_snapshot.TO_DEVICE)
    for _ in range(12):
        made.step(kept=[(memory_snapshot.GIB, memory_snapshot.forward())])
        made.segment((memory_snapshot.MIB, memory_snapshot.STATES), (memory_snapshot.GIB, None))
    made.fail(2 * memory_snapshot.GIB, memory_snapshot.forward())
    # Each stack is a separate list, so that a change meets one of them.
    value: dict[str, Any] = json.loads(json.dumps(memory_snapshot.snapshot(made)))
    return value


LOG = b"""\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/train.py", line 40, in main
[rank0]:     loss.backward()
[rank0]:     ~~~~~~~~~~~~~^^
[rank0]:   File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 630, in backward
[rank0]:     torch.autograd.backward(
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total
[rank0]: of 79.11 GiB
[default1]:[rank1]: Traceback (most recent call last):
[default1]:[rank1]:   File "/home/user/train.py", line 12, in main
[default1]:[rank1]: ValueError: no such file
[E1120 03:04:05.123456789 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation
3: Traceback (most recent call last):
3:   File "/home/user/train.py", line 12, in main
3: KeyError: 'x'
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_03:04:05
  host      : node-1
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4242)
  error_file: <N/A>
"""
