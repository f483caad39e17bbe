from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.frames import Block, Frame
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.loading import DataSeen, Loader, Loading, LoopTurns
from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.source_facts import SourceOwnSkip
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Confidence, Severity
from ddoctor.script.reader import read
from tests.conftest import Findings
from tests.live_look import block, in_collective, in_reduction, look, moving, standing
from tests.training_loaders import loader_with
from tests.training_run import ALL_REDUCE, ENGINE, echoing, ending, run, user

CAUSE = "uneven-inputs-per-rank"


def loader(rank: int, batches: int | None, ended: Sequence[int] = (), **more: object) -> Loader:
    plain = loader_with(
        rank=rank,
        host="a",
        dataset="Sounds",
        items=640,
        batch_size=None,
        batches=batches,
        sampler="DynamicBucketing",
        taken=30,
        epoch_batches=tuple(ended),
    )
    return msgspec.structs.replace(plain, **more)


def loading(*batches: int | None, ended: Sequence[Sequence[int]] = (), **more: object) -> Loading:
    """Ranks with so many batches, and with epochs that had so many when they ended."""
    return Loading(
        loaders=tuple(
            loader(rank, count, ended[rank] if ended else (), **more)
            for rank, count in enumerate(batches)
        )
    )


def wrapped(kind: str = "ddp") -> Wrapping:
    wrapper = Wrapper(
        rank=0,
        kind=kind,  # type: ignore[arg-type]
        name="Net",
        parameters=10,
        parameter_bytes=40,
        trainable_bytes=40,
    )
    return Wrapping(wrappers=(wrapper,))


def test_a_rank_has_a_batch_more(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loading(40, 40, 41, 40), wrapped())
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.LIKELY
    assert finding.where.ranks == (2,)
    assert "has 40 batches on ranks 0-1, 3 and 41 on rank 2" in finding.because
    assert "unless all ranks leave the epoch together" in finding.because
    assert "drop_last=True" in finding.fixes[0].paste
    assert "ReduceOp.MIN" in finding.fixes[1].paste


def test_of_two_ranks_the_shorter_one(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loading(41, 40), wrapped())
    assert finding.where.ranks == (1,)


def test_a_stream_shows_it_at_the_end_of_an_epoch(findings: Findings) -> None:
    section = loading(None, None, ended=((20, 20), (20, 21)), kind="iterable", items=None)
    (finding,) = findings(CAUSE, section, wrapped())
    assert "20 batches on rank 0 and 21 on rank 1" in finding.because
    assert finding.evidence[0].source == "epochs that ended"
    assert "ReduceOp.MIN" in finding.fixes[0].paste


def test_the_longer_rank_hung(findings: Findings) -> None:
    ended = run(ending(0, "finished", steps=40), ending(1, "hung", steps=40, doing="backward"))
    (finding,) = findings(CAUSE, loading(40, 41), wrapped(), ended)
    assert finding.confidence is Confidence.CERTAIN
    assert "rank 1 waited forever" in finding.because
    assert "unless" not in finding.because


def test_it_explains_the_error_of_the_longer_rank() -> None:
    ended = run(ending(0, "finished", steps=40), echoing(1))
    report = engine.examine(Evidence([loading(40, 41), wrapped(), ended]), "run")
    assert [one.cause for one in report.findings] == [CAUSE]
    assert "an epoch of the loader" in report.findings[0].because


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        (loading(40, 40), "ddp"),
        # Nobody waits for anybody.
        (loading(40, 41), "none"),
        # They differ, but were left together.
        (loading(40, 41, ended=((40, 40), (40, 40))), "ddp"),
        # Nothing is known of one of them.
        (loading(40, None), "ddp"),
        (loading(40), "ddp"),
    ],
)
def test_quiet_where_all_have_as_many(findings: Findings, section: Loading, kind: str) -> None:
    assert findings(CAUSE, section, wrapped(kind)) == ()


def test_quiet_where_all_came_to_the_end(findings: Findings) -> None:
    ended = run(ending(0, "finished"), ending(1, "finished"))
    assert findings(CAUSE, loading(40, 41), wrapped(), ended) == ()


def test_quiet_about_two_loaders_of_one_line(findings: Findings) -> None:
    several = Loading(loaders=(*loading(40, 40).loaders, *loading(60, 60).loaders))
    assert findings(CAUSE, several, wrapped()) == ()


EPOCHS = block(30, 60, "for epoch in range(3):")
BATCHES = block(35, 45, "for batch in loader:")
SAVED = block(48, 50, "if rank == 0:")


def test_a_live_rank_that_has_left_the_loop(findings: Findings) -> None:
    live = look(
        in_reduction(0, (EPOCHS, BATCHES)),
        in_collective(1, "barrier", 50, (EPOCHS,)),
        in_reduction(2, (EPOCHS, BATCHES)),
    )
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (1,)
    assert "loop at train.py:35 (`for batch in loader:`)" in finding.because
    assert "rank 1 has left the loop and waits in barrier at train.py:50" in finding.because
    assert "ranks 0, 2 are still in it and wait in backward at train.py:40" in finding.because


@pytest.mark.parametrize(
    ("line", "ends", "names"), [(37, False, True), (37, True, False), (9, False, False)]
)
def test_a_test_of_the_source_by_which_a_rank_skips_batches(
    findings: Findings, line: int, ends: bool, names: bool
) -> None:
    at = SourceLine(file="train.py", line=line, text="continue")
    own = SourceOwnSkip(at=at, test="not mask.any()", ends=ends)
    script = Script(files=("train.py",), own_skips=(own,))
    live = look(in_reduction(0, (EPOCHS, BATCHES)), in_collective(1, "barrier", 50, (EPOCHS,)))
    (finding,) = findings(CAUSE, live, script)
    assert ("(`continue`) skips a batch if `not mask.any()`" in finding.because) is names
    assert ("float(not mask.any())" in finding.fixes[0].paste) is names


def test_a_test_by_which_a_rank_skips_batches(findings: Findings) -> None:
    test = Frame(
        file="train.py", line=36, function="train", text="if len(boxes) == 0:", of_user=True
    )
    waits = in_reduction(0, (EPOCHS, BATCHES))
    row = msgspec.structs.replace(waits.activities[0], skipped_at=test)
    waits = msgspec.structs.replace(waits, activities=(row,))
    (finding,) = findings(CAUSE, look(waits, in_collective(1, "barrier", 50, (EPOCHS,))))
    assert "train.py:36 in train (`if len(boxes) == 0:`) skips a batch" in finding.because
    assert "torch.tensor(float(len(boxes) == 0), device=device)" in finding.fixes[0].paste


def test_a_live_run_of_which_one_has_come_to_its_end(findings: Findings) -> None:
    live = look(in_reduction(0, (BATCHES,)), missing=(1,))
    (finding,) = findings(CAUSE, live)
    assert finding.where.ranks == (1,)
    assert "rank 1 finished the script" in finding.because


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        look(in_reduction(0, (EPOCHS, BATCHES)), in_reduction(1, (EPOCHS, BATCHES))),
        # Other places of the same loop, before it, and none at all.
        look(in_reduction(0, (BATCHES,)), in_collective(1, "barrier", 44, (BATCHES,))),
        look(in_reduction(0, (BATCHES,)), in_collective(1, "barrier", 20)),
        look(in_reduction(0), in_collective(1, "barrier", 50)),
        # Out of the loop it does something else; and a rank is dead.
        look(in_reduction(0, (BATCHES,)), standing(1, "rest", user(50, function="train"))),
        look(in_reduction(0, (BATCHES,)), missing=(1,), supervised=False),
        # Not a loop.
        look(in_collective(0, "barrier", 49, (SAVED,)), in_collective(1, "all_reduce", 55)),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


def hung(rank: int, doing: str, *stack: Frame, within: Sequence[Block] = ()) -> RankEnding:
    """A rank that a recorded run ended as it hung."""
    inner = ENGINE if doing == REDUCTION else ALL_REDUCE
    return ending(
        rank,
        "hung",
        doing=doing,
        doing_seconds=31.0,
        stack=(*stack, inner),
        within=tuple(within),
    )


REDUCTION = "DDP's gradient reduction"
IN_EPOCH = msgspec.structs.replace(BATCHES, function="one_epoch", line=12, end=20)
ENDLESS = msgspec.structs.replace(IN_EPOCH, text="while True:")
CALLS = user(31, "total = one_epoch(model, loader)", "train")
SHORT = hung(1, "barrier", user(32, "dist.barrier()", "train"), within=(EPOCHS,))


def longer(*within: Block) -> RankEnding:
    """A rank in a loop of a function that the other one has returned from."""
    line = user(15, "loss.backward()", "one_epoch")
    return hung(0, REDUCTION, CALLS, line, within=(EPOCHS, *within))


def in_epoch(ended: Sequence[int], unended: int) -> Loading:
    """Rank 1 has ended so many epochs; rank 0 is in one with so many batches."""
    still = loader(0, None, unended=unended, kind="iterable")
    return Loading(loaders=(still, loader(1, None, ended, kind="iterable")))


def test_a_recorded_rank_has_ended_an_epoch_in_which_another_waits(findings: Findings) -> None:
    (finding,) = findings(CAUSE, in_epoch([40], 41), wrapped(), run(longer(IN_EPOCH), SHORT))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.where.ranks == (1,)
    assert "40 batches on rank 1 and at least 41 on rank 0" in finding.because
    assert "rank 1 waited in barrier at train.py:32" in finding.because
    assert "only rank 0 is inside `for batch in loader:` (train.py:12)" in finding.because
    # A stream has no length.
    assert "len(loader)" not in finding.fixes[0].paste


def test_the_loop_of_a_framework_is_none_of_the_users_lines(findings: Findings) -> None:
    fits = user(31, "trainer.fit(model)", "train")
    inside, outside = hung(0, REDUCTION, fits), hung(1, "barrier", fits)
    (finding,) = findings(CAUSE, in_epoch([40], 41), wrapped(), run(inside, outside))
    assert "at least 41 on rank 0" in finding.because


@pytest.mark.parametrize(
    ("section", "ended"),
    [
        # As many so far; the rank left by itself, as a flag or its loss told it.
        (in_epoch([40], 40), run(longer(IN_EPOCH), SHORT)),
        (in_epoch([], 41), run(longer(IN_EPOCH), SHORT)),
        # Both left the loop together, and then missed each other.
        (in_epoch([40], 41), run(hung(0, "all_reduce", CALLS, within=(EPOCHS,)), SHORT)),
        # Nothing hung.
        (in_epoch([40], 41), run(ending(0, "stopped"), ending(1, "stopped"))),
        (in_epoch([40], 41), run(ending(0, "interrupted"), ending(1, "interrupted"))),
    ],
)
def test_quiet_where_no_epoch_is_known_to_be_shorter(
    findings: Findings, section: Loading, ended: TrainingRun
) -> None:
    assert findings(CAUSE, section, wrapped(), ended) == ()


def test_a_recorded_loop_over_what_the_script_makes_itself(findings: Findings) -> None:
    for loop in (IN_EPOCH, ENDLESS):
        (finding,) = findings(CAUSE, run(longer(loop), SHORT))
        assert finding.confidence is Confidence.LIKELY
        assert f"(`{loop.text}`): rank 1 has left the loop and waits in" in finding.because
        assert "rank 0 is still in it and waits in backward at train.py:15" in finding.because


def test_the_loop_over_data_is_named_where_both_are_left(findings: Findings) -> None:
    after = hung(1, "all_reduce", user(70, "dist.all_reduce(total)", "train"))
    (finding,) = findings(CAUSE, run(longer(IN_EPOCH), after))
    assert "loop at train.py:12 (`for batch in loader:`)" in finding.because


def test_gloo_fails_where_the_tensors_do_not_fit(findings: Findings) -> None:
    words = "op.preamble.length <= op.nbytes. 64 vs 4. Received data size doesn't match"
    died = {"outcome": "killed", "exit_code": -6, "printed": words}
    short = msgspec.structs.replace(SHORT, **died)
    lost = msgspec.structs.replace(
        longer(IN_EPOCH), outcome="failed", exception="RuntimeError", message="closed by peer"
    )
    report = engine.examine(Evidence([run(lost, short)]), "run")
    assert [one.cause for one in report.findings] == [CAUSE]
    assert "then gloo met tensors that do not fit" in report.findings[0].because


CHOSEN = block(30, 31, "if metric < best:")


@pytest.mark.parametrize(
    "ended",
    [
        # A test of its own may have ended it, and a branch may have kept it out.
        run(longer(msgspec.structs.replace(IN_EPOCH, decides=True)), SHORT),
        run(longer(CHOSEN, IN_EPOCH), SHORT),
        # Before the call, in another file, in the same loop, or not waiting.
        run(longer(IN_EPOCH), hung(1, "barrier", user(30, "", "train"), within=(EPOCHS,))),
        run(longer(IN_EPOCH), hung(1, "barrier", user(32, "", "evaluate"), within=(EPOCHS,))),
        run(longer(IN_EPOCH), msgspec.structs.replace(longer(IN_EPOCH), rank=1)),
        run(longer(IN_EPOCH), ending(1, "hung", doing="forward", stack=(user(32),))),
        run(longer(IN_EPOCH), ending(1, "killed", exit_code=-9)),
        run(ending(0, "stopped"), ending(1, "stopped")),
    ],
)
def test_quiet_on_a_recorded_run(findings: Findings, ended: TrainingRun) -> None:
    assert findings(CAUSE, ended) == ()


def test_a_loop_that_a_loader_counts_is_left_to_the_counts(findings: Findings) -> None:
    assert findings(CAUSE, in_epoch([], 40), run(longer(IN_EPOCH), SHORT)) == ()


def test_quiet_where_the_script_joins_the_ranks(findings: Findings, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from torch.distributed.algorithms.join import Join\n"
        "with Join([model]):\n    for batch in loader:\n        step(batch)\n"
    )
    joined = read(script, ())
    assert findings(CAUSE, loading(40, 41), wrapped(), joined) == ()
    # Which does not help if it hangs all the same.
    ended = run(ending(0, "finished", steps=40), ending(1, "hung", steps=40, doing="backward"))
    assert findings(CAUSE, loading(40, 41), wrapped(), joined, ended)


def test_whom_another_rank_left_alone_did_wait_for_it(findings: Findings) -> None:
    """Whatever wraps the model: the loop may reduce the gradients itself."""
    ended = run(ending(0, "finished", steps=40), echoing(1))
    (finding,) = findings(CAUSE, loading(40, 41), wrapped("none"), ended)
    assert "an epoch of the loader" in finding.because


@pytest.mark.parametrize(
    ("recorded", "told"), [((), 1), ((Loading(loaders=()),), 1), ((loading(40, 40),), 0)]
)
def test_items_that_are_dealt_out(
    findings: Findings, tmp_path: Path, recorded: tuple[Loading, ...], told: int
) -> None:
    """A recorded run without a DataLoader tells no more than the source."""
    script = tmp_path / "train.py"
    script.write_text(
        "from torch.nn.parallel import DistributedDataParallel\n"
        "model = DistributedDataParallel(net)\n"
        "mine = texts[rank::world]\n"
        "for epoch in range(9):\n"
        "    for batch in mine:\n"
        "        model(batch).backward()\n"
        "        optimizer.step()\n"
    )
    assert len(findings(CAUSE, read(script, ()), *recorded)) == told
    # Lists of one length, as the run shows.
    mine = in_loops((100, {}), (100, {}), at="train.py:5")
    assert findings(CAUSE, read(script, ()), *mine, wrapped()) == ()


STREAM = """
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

class Rows(IterableDataset):
    def __init__(self, files):
        self.files = files[rank::world]

    def __iter__(self):
        for path in self.files:
            yield from open(path)

model = DistributedDataParallel(net)
loader = DataLoader(Rows(paths), batch_size=8)
for epoch in range(9):
    for batch in loader:
        model(batch).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("recorded", "severities"),
    [
        ((), [Severity.WARNING]),
        ((loading(None, None),), [Severity.NOTE]),
        ((loading(None, None, ended=((40,), (40,))),), []),
    ],
)
def test_a_run_that_does_not_come_to_the_end_of_a_stream(
    findings: Findings,
    tmp_path: Path,
    recorded: tuple[Loading, ...],
    severities: Sequence[Severity],
) -> None:
    script = tmp_path / "train.py"
    script.write_text(STREAM)
    told = findings(CAUSE, read(script, ()), *recorded)
    assert [one.severity for one in told] == severities


def in_loops(
    *each: tuple[int | None, dict[str, int]], at: str = "train.py:30"
) -> tuple[DataSeen, TrainingRun]:
    """Ranks that were stopped in a loop with so many turns, or with such numbers."""
    turns = (
        LoopTurns(rank=rank, at=at, text="for x in mine:", turns=turns, numbers=numbers)
        for rank, (turns, numbers) in enumerate(each)
    )
    stopped = run(*(ending(rank, "stopped") for rank in range(len(each))))
    return DataSeen(epochs=(), turns=tuple(turns)), stopped


def test_a_loop_over_a_list_of_each_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, *in_loops((100, {}), (103, {})), wrapped())
    assert finding.severity is Severity.WARNING
    assert finding.because.startswith(
        "the loop at train.py:30 (`for x in mine:`) has 100 turns on rank 0 and 103 on rank 1"
    )


def test_a_number_that_a_loop_gives_to_a_function(findings: Findings) -> None:
    mine = in_loops((None, {"batches": 297, "seed": 7}), (None, {"batches": 307, "seed": 8}))
    (finding,) = findings(CAUSE, *mine, wrapped("fsdp2"))
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)
    assert "reads batches, which is 297 on rank 0 and 307 on rank 1" in finding.because


@pytest.mark.parametrize(
    ("each", "model"),
    [
        ([(100, {}), (100, {})], "ddp"),
        ([(100, {}), (None, {})], "ddp"),
        ([(None, {"seed": 700}), (None, {"seed": 701})], "ddp"),
        ([(None, {"rank": 0}), (None, {"rank": 1})], "ddp"),
        # The end of a part in a row.
        ([(None, {"high": 500}), (None, {"high": 1000})], "ddp"),
        # The ranks train models apart.
        ([(100, {}), (103, {})], "none"),
    ],
)
def test_quiet_about_loops(
    findings: Findings, each: list[tuple[int | None, dict[str, int]]], model: str
) -> None:
    assert findings(CAUSE, *in_loops(*each), wrapped(model)) == ()


def test_quiet_about_loops_of_a_run_to_its_end(findings: Findings) -> None:
    seen, _ = in_loops((100, {}), (103, {}))
    ended = run(ending(0, "finished"), ending(1, "finished"))
    assert findings(CAUSE, seen, ended, wrapped()) == ()
