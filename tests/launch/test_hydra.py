"""Configurations that Hydra composes: what counts, where it stands, and what Hydra would refuse."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.evidence.launch import Launch
from ddoctor.launch import reader

SCRIPT = """
    import hydra
    from omegaconf import DictConfig

    @hydra.main(version_base=None, config_path="conf", config_name="train")
    def main(cfg: DictConfig) -> None:
        print(cfg)

    main()
"""
FILES = {
    "conf/train.yaml": """
        defaults:
          - model: small
          - optional secret: nobody
          - trainer: one
          - experiment: null
          - override hydra/job_logging: default
          - _self_
        data:
          batch_size: 16
          num_workers: ${threads}
        threads: 4
        lr: 1e-3
        """,
    "conf/model/small.yaml": "hidden: 128\n",
    "conf/model/large.yaml": """
        defaults:
          - small
        hidden: 4096
        layers: 40
        """,
    "conf/trainer/one.yaml": "max_epochs: 10\naccumulate_grad_batches: 2\n",
    "conf/trainer/many.yaml": "max_epochs: 90\naccumulate_grad_batches: 1\n",
    "conf/experiment/full.yaml": """
        # @package _global_
        defaults:
          - override /model: large
          - override /trainer: many
        data:
          batch_size: 64
        """,
}
START = ("torchrun", "--nproc-per-node", "4", "train.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"train.py": SCRIPT, **FILES}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))
    return tmp_path


def launch(folder: Path, *overrides: str) -> Launch:
    return reader.read([*START, *overrides], folder)


def winners(found: Launch) -> dict[str, str]:
    values = {one.name: one.value for one in reversed(found.settings)}
    return {name[4:]: value for name, value in values.items() if name.startswith("arg.")}


def test_the_files_are_merged_in_their_order(folder: Path) -> None:
    found = launch(folder)
    assert winners(found) == {
        "model.hidden": "128",
        "trainer.max_epochs": "10",
        "trainer.accumulate_grad_batches": "2",
        "data.batch_size": "16",
        "data.num_workers": "4",
        "threads": "4",
        "lr": "1e-3",
    }
    assert found.files == ("conf/train.yaml", "conf/model/small.yaml", "conf/trainer/one.yaml")
    batch = found.get("arg.data.batch_size")
    assert batch is not None
    assert batch.at == "train.yaml:9"


def test_a_group_is_chosen_on_the_command_line(folder: Path) -> None:
    values = winners(launch(folder, "model=large", "trainer.max_epochs=3"))
    assert (values["model.hidden"], values["model.layers"]) == ("4096", "40")
    assert values["trainer.max_epochs"] == "3"


def test_an_experiment_chooses_the_options_of_other_groups(folder: Path) -> None:
    for override in ("experiment=full", "+experiment=full"):
        values = winners(launch(folder, override))
        assert values["model.hidden"] == "4096"
        assert values["trainer.max_epochs"] == "90"


def test_what_its_package_is_global_sets_the_root(folder: Path) -> None:
    (folder / "conf/train.yaml").write_text("defaults: [_self_, extra: more]\nlr: 1\n")
    (folder / "conf/extra").mkdir()
    (folder / "conf/extra/more.yaml").write_text("# @package _global_\nlr: 2\n")
    assert winners(launch(folder))["lr"] == "2"


def test_a_config_is_named_on_the_command_line(folder: Path) -> None:
    (folder / "conf/other.yaml").write_text("lr: 7\n")
    assert winners(launch(folder, "--config-name=other"))["lr"] == "7"


def test_the_plan_knows_numbers_within_sections(folder: Path) -> None:
    plan = LaunchPlan.derive(launch(folder), None)
    assert plan.micro_batch is not None
    assert (plan.micro_batch.value, plan.accumulation, plan.batch) == ("16", 2, 128)


@pytest.mark.parametrize(
    ("override", "name", "nearest"),
    [
        ("trainer.max_epoch=3", "trainer.max_epoch", "trainer.max_epochs"),
        ("modell=large", "modell", "model"),
        ("model=larg", "model=larg", "large"),
    ],
)
def test_what_hydra_would_refuse(folder: Path, override: str, name: str, nearest: str) -> None:
    (found,) = launch(folder, override).unknown
    assert (found.setting.name, found.nearest) == (name, nearest)
    assert found.of.startswith("Hydra's")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model=large", "model.layers=4"),
        ("+trainer.fast=true", "++lr=2", "~threads"),
        ("hydra.run.dir=out", "hydra/launcher=basic"),
        ("experiment=full", "data.num_workers=2"),
        ("data={batch_size: 4}",),
    ],
)
def test_what_hydra_takes(folder: Path, overrides: tuple[str, ...]) -> None:
    assert launch(folder, *overrides).unknown == ()


def test_of_a_configuration_with_missing_parts_nothing_is_refused(folder: Path) -> None:
    (folder / "conf/trainer/one.yaml").unlink()
    assert launch(folder, "trainer.fast=1").unknown == ()


def test_of_a_configuration_with_classes_nothing_is_refused(folder: Path) -> None:
    script = dedent(SCRIPT).replace("main()\n", "ConfigStore.instance()\nmain()\n")
    (folder / "train.py").write_text(script)
    assert launch(folder, "trainer.fast=1").unknown == ()


@pytest.mark.parametrize(
    "text", ["defaults: [train]\n", "defaults:\n  - model: [small, small]\n", ": [", "- 1\n", ""]
)
def test_odd_files_end_nothing(folder: Path, text: str) -> None:
    (folder / "conf/train.yaml").write_text(text)
    assert winners(launch(folder, "lr=1"))["lr"] == "1"


def test_a_file_that_names_itself_often_takes_no_time(folder: Path) -> None:
    (folder / "conf/train.yaml").write_text(f"defaults: [{', '.join(['train'] * 9)}]\n")
    found = launch(folder, "lr=1", "x=2")
    assert (found.files, found.unknown) == (("conf/train.yaml",), ())


def test_another_script_reads_no_configuration(folder: Path) -> None:
    (folder / "train.py").write_text("print(1)\n")
    assert launch(folder, "lr=1").files == ()
