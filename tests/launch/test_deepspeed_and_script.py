"""Numbers that DeepSpeed's file and the loop of a script both have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.reviewed import causes, reviewed

OWN_LOOP = """
    import argparse
    import json
    import deepspeed

    def options():
        parser = argparse.ArgumentParser()
        parser.add_argument("--grad_accum", type=int, default={default})
        parser.add_argument("--total_batch", type=int, default=0)
        parser.add_argument("--micro_batch", type=int, default=0)
        parser.add_argument("--ds_config", default="ds.json")
        parser.add_argument("--deepspeed", action="store_true")
        return parser.parse_args()

    def main(args):
        engine, *_ = deepspeed.initialize(model=net(), config=args.ds_config)
        per_epoch = len(loader) // args.grad_accum
        {more}
        for batch in loader:
            engine.backward(engine(batch).loss)
            engine.step()

    main(options())
"""
FILE = '{{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": {}}}'
STARTS = "deepspeed --num_gpus 4 train.py --deepspeed"


def own_loop(more: str = "", default: int = 4) -> str:
    return OWN_LOOP.format(more=more, default=default)


@pytest.mark.parametrize(
    ("arguments", "steps", "says"),
    [
        ("--grad_accum 16", 4, "grad_accum = 16"),
        ("", 8, "grad_accum = 4"),
        ("--total_batch 256", 4, "total_batch = 256"),
        ("--micro_batch 2", 4, "micro_batch = 2"),
    ],
)
def test_they_differ(tmp_path: Path, arguments: str, steps: int, says: str) -> None:
    text = FILE.format(steps)
    found = reviewed(tmp_path, f"{STARTS} {arguments}", own_loop(), ds_json=text)
    wrong = [one for one in found if one.cause == "launch-config-invalid"]
    assert [says in one.because for one in wrong] == [True]


@pytest.mark.parametrize(
    "config",
    [
        '"ds.json"',
        'json.load(open("ds.json"))',
        "args.ds_config",
    ],
)
def test_a_file_that_the_source_names(tmp_path: Path, config: str) -> None:
    source = own_loop().replace("args.ds_config", config)
    command = f"{STARTS} --grad_accum 16"
    assert "launch-config-invalid" in causes(tmp_path, command, source, ds_json=FILE.format(4))
    made = source.replace(f"config={config}", "config=settings_of(args)")
    assert "launch-config-invalid" not in causes(tmp_path, command, made, ds_json=FILE.format(4))


@pytest.mark.parametrize(
    ("arguments", "steps", "source"),
    [
        ("--grad_accum 16", "16", own_loop()),
        ("--grad_accum 16", '"auto"', own_loop()),
        ("--total_batch 64 --micro_batch 4", "4", own_loop()),
        ("--grad_accum 16", "4", own_loop("assert engine.gradient_accumulation_steps() == 4")),
        ("--grad_accum 16", "4", own_loop("settings['gradient_accumulation_steps'] = 16")),
        ("--grad_accum 16", "4", own_loop("x = dict(gradient_accumulation_steps=16)")),
        ("", "4", own_loop(default=1)),
        ("--grad_accum 16", "4", own_loop().replace("initialize", "init_inference")),
    ],
)
def test_they_agree_or_may_do_so(tmp_path: Path, arguments: str, steps: str, source: str) -> None:
    found = causes(tmp_path, f"{STARTS} {arguments}", source, ds_json=FILE.format(steps))
    assert "launch-config-invalid" not in found


CASTS = """
    import deepspeed, torch

    class Net(torch.nn.Module):
        {decorator}
        def forward(self, batch):
            return self.layer(batch)

    net = Net()
    engine, *_ = deepspeed.initialize(model=net, config="ds.json")
    for batch in loader:
        with {context}:
            loss = {model}(batch)
        engine.backward(loss)
        engine.step()
"""
HALF = "torch.autocast('cuda', dtype=torch.float16)"
BRAIN = "torch.autocast('cuda', dtype=torch.bfloat16)"
PLAIN = "contextlib.nullcontext()"


@pytest.mark.parametrize(
    ("decorator", "context", "model", "precision", "wrong"),
    [
        (f"@{HALF}", PLAIN, "engine", "bf16", True),
        ("", HALF, "engine", "bf16", True),
        (f"@{BRAIN}", PLAIN, "engine", "bf16", False),
        (f"@{HALF}", PLAIN, "engine", "fp16", False),
        ("", BRAIN, "engine", "bf16", False),
        ("", HALF, "teacher", "bf16", False),
        ("", HALF, "engine", "unknown", False),
    ],
)
def test_an_autocast_for_another_type(
    tmp_path: Path, decorator: str, context: str, model: str, precision: str, wrong: bool
) -> None:
    source = CASTS.format(decorator=decorator, context=context, model=model)
    config = f'{{"train_micro_batch_size_per_gpu": 4, "{precision}": {{"enabled": true}}}}'
    found = causes(tmp_path, "deepspeed --num_gpus 4 train.py", source, ds_json=config)
    assert ("mixed-precision-overridden" in found) is wrong
