from __future__ import annotations

import msgspec
import pytest

from ddoctor.evidence.section import Section
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.gpu_memory_error import CROWDED, error, out_of_memory
from tests.memory_sweep.sample import swept
from tests.plans import planned
from tests.training_run import ending, library, raised, run, user

CAUSE = "model-does-not-fit"


def test_more_than_the_gpu_has(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(24))
    # 26.4 GB of parameters, gradients and states on each of two.
    assert finding.confidence is Confidence.CERTAIN
    assert "FSDP, all sharded on 2 GPUs needs least" in finding.because
    assert "T9 has 22.4 GiB" in finding.because
    assert finding.cost is not None
    assert finding.cost.value > 0


def test_what_only_the_memory_of_the_host_makes_fit_is_a_warning(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(24))
    assert finding.severity is Severity.WARNING
    (offload,) = [fix for fix in finding.fixes if "on the CPU" in fix.summary]
    assert offload.expected_gain is not None
    assert "which is enough" in offload.expected_gain
    (finding,) = findings(CAUSE, planned(24, activations=30))
    assert finding.severity is Severity.ERROR
    assert "FSDP, all sharded on 2 GPUs needs least" in finding.because
    (offload,) = [fix for fix in finding.fixes if "on the CPU" in fix.summary]
    assert offload.expected_gain is not None
    assert "which alone is not enough" in offload.expected_gain


def test_how_many_gpus_it_takes(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(24))
    (sharded,) = [fix for fix in finding.fixes if "FSDP" in fix.summary]
    number = int(sharded.summary.split(" GPUs")[0].rpartition(" ")[2])
    assert number > 2
    assert findings(CAUSE, planned(24, (number,))) == ()
    enough, fewer = planned(24, (number,)), planned(24, (number // 2,))
    assert [row.fit for row in enough.rows if row.strategy == "fsdp"] == ["fits"]
    assert all(row.fit != "fits" for row in fewer.rows)


def test_activations_alone_are_made_smaller(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(60, (1,), activations=30))
    smaller, recomputed, states = finding.fixes[:3]
    assert finding.confidence is Confidence.LIKELY
    assert finding.cost is not None
    missing = f"for the {finding.cost.value} GiB missing"
    assert smaller.expected_gain == f"about 14.0 GiB, which alone is not enough {missing}"
    assert recomputed.expected_gain == f"up to 27.9 GiB, which is enough {missing}"
    assert states.expected_gain == f"about 24.6 GiB, which is enough {missing}"


def test_what_is_not_known_is_not_made_smaller(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(24, activations=0))
    assert not any("micro-batch" in fix.summary for fix in finding.fixes)


def test_a_first_step_that_ran_out_of_memory(findings: Findings) -> None:
    section = run(out_of_memory(1, steps=0, doing="forward"), ending(0, "hung"))
    (finding,) = findings(CAUSE, section)
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert finding.because == (
        "rank 1 (pid 101 on a) ran out of memory on GPU 1 after 0 steps, at train.py:71 in main: "
        "it requested 2.00 GiB, and 0.50 of 79.2 GiB were free; torch held 77.0 GiB"
    )
    assert [fix.expected_gain for fix in finding.fixes] == ["up to 0.8 GiB", None, None]


def test_what_was_there_and_which_remedy_suffices(findings: Findings) -> None:
    model = Wrapper(
        rank=0,
        kind="ddp",
        name="T",
        parameters=10**9,
        parameter_bytes=4 * 2**30,
        trainable_bytes=4 * 2**30,
    )
    section = run(
        out_of_memory(0, error(wanted="30.00 GiB"), steps=1, doing="forward"),
        ending(1, "hung"),
        optimizers=("AdamW",),
    )
    (finding,) = findings(CAUSE, section, Wrapping(wrappers=(model,)))
    assert finding.because.endswith(
        "; torch held 77.0 GiB, about 4.0 parameters, 8.0 states of AdamW, 65.0 activations and "
        "temporary tensors"
    )
    assert [fix.expected_gain for fix in finding.fixes] == [
        "about 32.5 GiB, which is enough for the 29.5 GiB missing",
        "up to 65.0 GiB, which is enough for the 29.5 GiB missing",
        "about 6.0 GiB, which alone is not enough for the 29.5 GiB missing",
        "about 6.0 GiB, which alone is not enough for the 29.5 GiB missing",
    ]


def test_what_saves_next_to_nothing_is_no_remedy(findings: Findings) -> None:
    model = Wrapper(
        rank=0,
        kind="ddp",
        name="T",
        parameters=10**6,
        parameter_bytes=4 * 10**6,
        trainable_bytes=4 * 10**6,
    )
    section = run(out_of_memory(0, steps=1), optimizers=("AdamW",))
    (finding,) = findings(CAUSE, section, Wrapping(wrappers=(model,)))
    summaries = [fix.summary for fix in finding.fixes]
    assert any("micro-batch" in one for one in summaries)
    assert not any("FSDP" in one or "8 bits" in one for one in summaries)


def test_what_is_on_already_is_no_remedy(findings: Findings) -> None:
    model = Wrapper(
        rank=0,
        kind="fsdp2",
        name="T",
        parameters=10**10,
        parameter_bytes=40 * 2**30,
        trainable_bytes=40 * 2**30,
    )
    again = library("torch/utils/checkpoint.py", 1500, "recompute_fn")
    section = run(out_of_memory(0, stack=(user(9), again), steps=0), ending(1, "hung"))
    (finding,) = findings(CAUSE, section, Wrapping(wrappers=(model,)))
    summaries = " ".join(fix.summary for fix in finding.fixes)
    assert "FSDP" not in summaries
    assert "gradient checkpointing" not in summaries
    assert "on the CPU" in summaries


def test_a_log_does_not_tell_how_far_it_came(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(out_of_memory(1, steps=0), log="train.log"))
    assert finding.confidence is Confidence.LIKELY
    assert "according to train.log" in finding.because


def test_a_sweep_in_which_not_one_sample_fitted(findings: Findings) -> None:
    (finding,) = findings(CAUSE, swept(4, limits=(24.0, 8.0)))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.where.ranks == (1,)
    assert finding.because.startswith(
        "not even one sample of train:work fits in the 8 GiB of rank 1: its parameters alone "
        "take 2, "
    )
    assert any("FSDP" in fix.summary for fix in finding.fixes)


def test_a_sweep_in_which_less_fitted_than_is_used(findings: Findings) -> None:
    (finding,) = findings(CAUSE, swept(40))
    assert finding.because == (
        "micro-batches of 40 need more than the 24 GiB of rank 0; at most 32 fit, and 29 with "
        "a safety margin"
    )
    assert "halve the micro-batch" in finding.fixes[0].summary


@pytest.mark.parametrize(
    "section",
    [
        swept(4),
        swept(31),
        swept(None),
        swept(None, limits=(24.0, 9.0)),
        planned(80),
        planned(80, (1,)),
        planned(24, (8, 16)),
        planned(24, (1,), trainable=82e6, activations=1),
        run(out_of_memory(0, steps=100)),
        run(out_of_memory(0, CROWDED, steps=0)),
        run(raised(0, "ValueError"), ending(1, "hung")),
    ],
    ids=[
        "it fits well",
        "it fits narrowly",
        "any micro-batch would do",
        "one sample fits",
        "shared by two",
        "tight",
        "shared by many",
        "adapters",
        "it fitted for long",
        "of another process",
        "another error",
    ],
)
def test_quiet(findings: Findings, section: Section) -> None:
    assert findings(CAUSE, section) == ()


def test_what_is_sharded_is_not_to_be_sharded(findings: Findings) -> None:
    whole = swept(4, limits=(8.0, 8.0))
    for section, offered in (
        (whole, "over 2 GPUs with FSDP"),
        (msgspec.structs.replace(whole, sharded=True), "on the CPU"),
    ):
        (finding,) = findings(CAUSE, section)
        summaries = [fix.summary for fix in finding.fixes]
        assert sum("FSDP" in one for one in summaries) == (not section.sharded)
        assert any(offered in one for one in summaries)


def test_not_even_with_its_shares_on_the_cpu(findings: Findings) -> None:
    plan = planned(24, activations=40)
    (finding,) = findings(CAUSE, plan)
    least = min(row.parts.total for row in plan.rows if row.strategy == "fsdp-offload")
    assert plan.chosen is None
    assert finding.because.endswith(
        f"; with its shards in host memory it still needs {least / 2**30:.1f}"
    )
