"""Keys that the installed libraries do not know, and launches that resemble those with them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ddoctor.launch.nearest import almost, nearest
from ddoctor.models import Severity
from tests.launch.files import FSDP, TWO_GPUS, told
from tests.launch.installed import DEEPSPEED, LEROBOT, TRL, install

MODEL = "from dataclasses import dataclass\n@dataclass\nclass Model:\n    name: str = ''\n"
PARSES = """
    import sys
    from dataclasses import dataclass
    from transformers import HfArgumentParser, TrainingArguments
    from model_args import Model

    @dataclass
    class Arguments(TrainingArguments):
        notes: str = ""

    parser = HfArgumentParser((Model, Arguments))
    {}
"""
LINE = PARSES.format("model, args = parser.parse_args_into_dataclasses()")
FILE = PARSES.format("model, args = parser.parse_{}_file(sys.argv[1])")
BOTH = """
    if len(sys.argv) == 2:
        model, args = parser.parse_yaml_file(sys.argv[1])
    else:
        model, args = parser.parse_args_into_dataclasses()
"""


def said(folder: Path, command: str, **texts: str) -> list[str]:
    """The sentences on unknown keys."""
    found = told(folder, command, gpus=0, **{"model_args_py": MODEL, **texts})
    return [one.because for one in found if " knows no " in one.because]


def hf(folder: Path, arguments: str, source: str = LINE, **texts: str) -> list[str]:
    command = f"torchrun --nproc-per-node 2 train.py {arguments}"
    return said(folder, command, train_py=source, **texts)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("--per_device_batch_size 4", "--per_device_train_batch_size"),
        ("--per_device_batch_size=4", "--per_device_train_batch_size"),
        ("--epochs 3", "--num_train_epochs"),
        ("--evaluation_strategi steps", "--eval_strategy"),
        ("--note x --nam y --noted z", "--notes"),
        # Of several options that begin so, argparse takes none.
        ("--lr 3", ""),
    ],
)
def test_an_option_that_no_dataclass_has(tmp_path: Path, arguments: str, meant: str) -> None:
    (because,) = hf(tmp_path, arguments)
    assert because.startswith("train.py knows no --")
    assert because.endswith(f"did you mean {meant}?" if meant else "(the command line)")


@pytest.mark.parametrize(
    "arguments",
    [
        "--per_device_train_batch_size 4 --notes x --name y",
        "--per-device-train-batch-size=4",
        "--learning_rate -1 --no_remove_unused_columns --do_train",
        "--learning 1e-4",
        "--$option 4",
    ],
)
def test_options_that_they_have(tmp_path: Path, arguments: str) -> None:
    assert hf(tmp_path, arguments) == []


@pytest.mark.parametrize(
    "source",
    [
        LINE.replace("dataclasses()", "dataclasses(return_remaining_strings=True)"),
        LINE.replace("dataclasses()", "dataclasses(words)"),
        LINE.replace("(Model, Arguments)", "(Model, Arguments, made())"),
        LINE.replace("(Model, Arguments)", "(Model, Unknown)"),
        LINE.replace("(Model, Arguments)", "classes"),
        LINE.replace("model, args", "add_more(parser); model, args"),
        LINE.replace("model, args", "parser.add_argument('--epochs'); model, args"),
        LINE.replace("model, args", "sys.argv.remove('--epochs'); model, args"),
        LINE.replace("model, args", "sys.argv = words(); model, args"),
        LINE.replace("(TrainingArguments)", "(TrainingArguments, Unread)"),
        LINE.replace("import HfArgumentParser, ", "import ")
        .replace("from model", "from mine import HfArgumentParser\n    from model")
        .replace("transformers import TrainingArguments", "mine import TrainingArguments"),
    ],
)
def test_parsers_that_may_take_more(tmp_path: Path, source: str) -> None:
    assert source != LINE
    assert hf(tmp_path, "--epochs 3", source) == []


@pytest.mark.parametrize(
    ("before", "other"),
    [
        ("source /opt/env/bin/activate", True),
        ("cd /data && conda activate $ENV", True),
        ("module purge; export A=1", False),
        (f"source {sys.prefix}/bin/activate", False),
        ("srun --container-image=img", True),
    ],
)
def test_an_environment_that_a_script_activates(tmp_path: Path, before: str, other: bool) -> None:
    on_line = before.startswith("srun")
    line = "torchrun --nproc-per-node 2 train.py --epochs 3\n"
    script = f"{before} {line}" if on_line else f"{before}\n{line}"
    found = said(tmp_path, "bash run.sh", train_py=LINE, run_sh=script)
    assert bool(found) is not other


def test_another_version_than_the_installed(tmp_path: Path) -> None:
    assert said(tmp_path, "ssh worker torchrun train.py --epochs 3", train_py=LINE) == []
    assert said(tmp_path, "/opt/conda/bin/torchrun train.py --epochs 3", train_py=LINE) == []
    assert said(tmp_path, "uv run torchrun train.py --epochs 3", train_py=LINE) == []
    own = Path(sys.prefix, "bin", "torchrun")
    assert len(said(tmp_path, f"{own} train.py --epochs 3", train_py=LINE)) == 1
    assert hf(tmp_path, "--epochs 3", requirements_txt="transformers==3.0.0\n") == []


@pytest.mark.parametrize(
    ("source", "arguments", "name"),
    [
        (FILE.format("yaml"), "args.yaml", "args_yaml"),
        (PARSES.format(BOTH), "args.yaml", "args_yaml"),
        (PARSES.format("a, b = parser.parse_yaml_file('args.yaml')"), "", "args_yaml"),
        (FILE.format("json"), "args.json", "args_json"),
    ],
)
def test_a_file_of_arguments(tmp_path: Path, source: str, arguments: str, name: str) -> None:
    wrong = json.dumps({"name": "a", "per_device_batch_size": 4}, indent=1)
    right = wrong.replace("device_batch", "device_train_batch")
    file = name.replace("_", ".")
    assert hf(tmp_path, arguments, source, **{name: wrong}) == [
        f"train.py knows no per_device_batch_size ({file}:3): did you mean "
        "per_device_train_batch_size?"
    ]
    assert hf(tmp_path, arguments, source, **{name: right}) == []
    lenient = source.replace("_file(sys.argv[1])", "_file(sys.argv[1], allow_extra_keys=True)")
    if lenient != source:
        assert hf(tmp_path, arguments, lenient, **{name: wrong}) == []


@pytest.mark.parametrize(
    ("section", "because", "severity"),
    [
        (
            '"accelerator_config": {"split_batch": true}',
            "accelerator_config knows no split_batch (args.json:2): did you mean split_batches?",
            Severity.ERROR,
        ),
        (
            '"fsdp_config": {"transformer_layers_cls_to_wrap": "Block"}',
            "fsdp_config knows no transformer_layers_cls_to_wrap (args.json:2), and ignores it: "
            "did you mean transformer_layer_cls_to_wrap?",
            Severity.WARNING,
        ),
        ('"accelerator_config": {"split_batches": true}', "", Severity.NOTE),
        ('"fsdp_config": {"transformer_layer_cls_to_wrap": "Block"}', "", Severity.NOTE),
        ('"fsdp_config": {"fsdp_transformer_layer_cls_to_wrap": "B"}', "", Severity.NOTE),
        ('"fsdp_config": {"our_own_notes": "Block"}', "", Severity.NOTE),
    ],
)
def test_sections_of_the_trainer(
    tmp_path: Path, section: str, because: str, severity: Severity
) -> None:
    command = "torchrun --nproc-per-node 2 train.py args.json"
    found = told(
        tmp_path,
        command,
        model_args_py=MODEL,
        train_py=FILE.format("json"),
        args_json=f"{{\n{section}\n}}",
    )
    wrong = [one for one in found if " knows no " in one.because]
    assert [one.because for one in wrong] == ([f"transformers' {because}"] if because else [])
    assert all(one.severity is severity for one in wrong)


@pytest.mark.parametrize("form", ["file", "line"])
def test_a_section_that_an_option_gives(tmp_path: Path, form: str) -> None:
    text = '{"split_batch": true}'
    value = "acc.json" if form == "file" else f"'{text}'"
    found = hf(tmp_path, f"--accelerator_config {value}", acc_json=text)
    assert len(found) == 1
    assert "knows no split_batch" in found[0]
    # Another script may have an option with this name.
    assert hf(tmp_path, f"--accelerator_config {value}", "import torch\n", acc_json=text) == []


SOUND = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "comment": "of our own",
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "stage3_prefetch_bucket_size": 5,
        "overlap_comm": True,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
    "activation_checkpointing": {"partition_activations": True},
}


def deepspeed(folder: Path, wrong: str, right: str, source: str = "import deepspeed") -> list[str]:
    text = json.dumps(SOUND, indent=1)
    assert f'"{right}"' in text
    text = text.replace(f'"{right}"', f'"{wrong}"')
    command = "torchrun --nproc-per-node 2 train.py --deepspeed_config ds.json"
    return said(folder, command, train_py=source, ds_json=text)


@pytest.mark.parametrize(
    ("right", "wrong", "section", "ignored"),
    [
        ("gradient_accumulation_steps", "gradient_accumulation_step", "", True),
        ("zero_optimization", "zero_optimisation", "", True),
        ("partition_activations", "partition_activation", "activation_checkpointing.", True),
        ("params", "param", "optimizer.", True),
        ("overlap_comm", "overlap_com", "zero_optimization.", False),
        ("pin_memory", "pin_memmory", "zero_optimization.offload_optimizer.", False),
        ("enabled", "enable", "bf16.", False),
        ("warmup_num_steps", "warmup_steps", "scheduler.params.", False),
    ],
)
def test_a_key_of_deepspeed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    right: str,
    wrong: str,
    section: str,
    ignored: bool,
) -> None:
    assert deepspeed(tmp_path, wrong, right) == []
    install(tmp_path, monkeypatch, DEEPSPEED)
    found = deepspeed(tmp_path, wrong, right)[0]
    assert found.startswith(f"DeepSpeed's file knows no {section}{wrong} (ds.json:")
    assert (", and ignores it: " in found) is ignored
    assert found.endswith(f"did you mean {right}?")
    assert deepspeed(tmp_path, right, right) == []
    # What the script reads itself is the script's.
    reads = f"import deepspeed, json\nprint(json.load(open('ds.json'))['{wrong}'])"
    assert all(
        f".{wrong} " not in one and f" {wrong} " not in one
        for one in deepspeed(tmp_path, wrong, right, reads)
    )


def test_keys_that_accelerate_gives_deepspeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, DEEPSPEED)
    two = TWO_GPUS.replace("MULTI_GPU", "DEEPSPEED")
    own = "    deepspeed_config:\n      zero_stage: 3\n      offload_optimizer_device: cpu\n"
    assert said(tmp_path, "accelerate launch --config_file two.yaml t.py", two_yaml=two + own) == []
    file = "    deepspeed_config:\n      deepspeed_config_file: ds.json\n"
    wrong = '{"zero_optimization": {"stages": 3}}'
    command = "accelerate launch --config_file two.yaml t.py"
    (found,) = said(tmp_path, command, two_yaml=two + file, ds_json=wrong)
    assert "zero_optimization.stages (ds.json:1): did you mean stage?" in found


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("fsdp_use_orig_parms", "fsdp_use_orig_params"),
        ("use_orig_parms", "fsdp_use_orig_params"),
        ("use_orig_params", ""),
        ("our_own_notes", ""),
    ],
)
def test_a_section_of_accelerate(tmp_path: Path, written: str, meant: str) -> None:
    config = FSDP.replace("fsdp_use_orig_params", written)
    found = said(tmp_path, "accelerate launch --config_file fsdp.yaml t.py", fsdp_yaml=config)
    because = (
        f"accelerate's config file knows no fsdp_config.{written} (fsdp.yaml:8), and ignores it: "
        f"did you mean {meant}?"
    )
    assert found == ([because] if meant else [])


SFT = "dataset_name: a\nnum_train_epochs: 2\nenv:\n  A: 1\n"


@pytest.mark.parametrize(
    ("line", "sft", "meant"),
    [
        ("--max_lenght 5", SFT, "--max_length"),
        ("", f"{SFT}packings: true\n", "packing"),
        ("--max_length 5 --num_processes 2 --use_fsdp", SFT, ""),
        ("", f"{SFT}num_processes: 2\nmax_length: 10\n", ""),
    ],
)
def test_what_trl_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, sft: str, meant: str
) -> None:
    command = f"trl sft --config sft.yaml {line}"
    assert said(tmp_path, command, sft_yaml=sft) == []
    install(tmp_path, monkeypatch, TRL)
    found = said(tmp_path, command, sft_yaml=sft)
    assert bool(found) is bool(meant)
    assert all(one.endswith(f"did you mean {meant}?") for one in found)


OF_TRL = """
    from trl import ScriptArguments, SFTConfig, TrlParser
    parser = TrlParser((ScriptArguments, SFTConfig))
    script, args = parser.parse_args_and_config()
"""


def test_a_script_with_the_parser_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, TRL)
    wrong = f"{SFT}packings: true\n"
    found = hf(tmp_path, "--config sft.yaml", OF_TRL, sft_yaml=wrong)
    assert found == ["train.py knows no packings (sft.yaml:5): did you mean packing?"]
    assert hf(tmp_path, "--config sft.yaml --packing", OF_TRL, sft_yaml=SFT) == []
    lenient = OF_TRL.replace("config()", "config(fail_with_unknown_args=False)")
    assert hf(tmp_path, "--config sft.yaml", lenient, sft_yaml=wrong) == []


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ("--policy.type=act --policy.chunk_sise=5", "--policy.chunk_size"),
        ("--dataset.repo=a/b", "--dataset.repo_id"),
        ("--batch_sise=4", "--batch_size"),
        ("--policy.type=act --policy.chunk_size=5 --policy.device=cuda", ""),
        ("--dataset.repo_id=a/b --steps=5 --config_path=c.json", ""),
        # Another class may be meant.
        ("--policy.path=lerobot/act --policy.chunk_sise=5", ""),
        ("--policy.type=mine --policy.chunk_sise=5", ""),
        ("--env.type=aloha --env.taks=x", ""),
        ("--policy.discover_packages_path=mine --policy.type=act --policy.chunk_sise=5", ""),
    ],
)
def test_options_of_lerobot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, meant: str
) -> None:
    assert said(tmp_path, f"lerobot-train {options}") == []
    install(tmp_path, monkeypatch, LEROBOT)
    found = said(tmp_path, f"lerobot-train {options}")
    assert bool(found) is bool(meant)
    assert all(one.endswith(f"did you mean {meant}?") for one in found)


def test_the_nearest_name() -> None:
    names = ("--per_device_train_batch_size", "--per_device_eval_batch_size", "--num_train_epochs")
    assert nearest("--per_device_batch_size", names) == names[0]
    assert nearest("--per_device_eval_batch", names) == names[1]
    assert nearest("--epochs", names) == names[2]
    assert nearest("--batch_size", ("--batch_size_a", "--my_batch_size_of_b")) == "--batch_size_a"
    assert nearest("--lr", names) == ""
    assert almost("comment", ("comet",)) == ""
    assert almost("params", ("param",)) == "param"


@pytest.mark.parametrize(
    ("option", "before", "told_of"),
    [
        ("--brand_new_option 3", "source /opt/env/bin/activate", False),
        ("--brand_new_option 3", "cd /data", True),
        ("--num_proceses 3", "source /opt/env/bin/activate", True),
    ],
)
def test_options_of_the_launcher_there(
    tmp_path: Path, option: str, before: str, told_of: bool
) -> None:
    script = f"{before}\naccelerate launch {option} --num_machines 1 train.py\n"
    found = told(tmp_path, "bash run.sh", run_sh=script)
    assert any("accelerate launch knows no" in one.because for one in found) is told_of
