from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ddoctor.evidence.loading import Loader, Loading, WorkerRandomness
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.training_loaders import loader_with

CAUSE = "identical-rng-across-workers"


def loader(
    states: Sequence[str], source: str = "dataset.rng", used: bool = True, **more: object
) -> Loader:
    """A loader whose workers begin with these states of one source."""
    plain = loader_with(
        num_workers=len(states),
        sampler="RandomSampler",
        taken=60,
        randomness=tuple(
            WorkerRandomness(worker=worker, source=source, first=state, used=used)
            for worker, state in enumerate(states)
        ),
    )
    return msgspec.structs.replace(plain, **more)


def loading(*loaders: Loader) -> Loading:
    return Loading(loaders=loaders)


def test_a_generator_that_the_dataset_keeps(findings: Findings) -> None:
    section = loading(*(loader("aaaa", rank=rank) for rank in range(2)))
    (finding,) = findings(CAUSE, section)
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    assert "4 of the 4 workers" in finding.because
    assert finding.where.ranks == ()
    assert "info.dataset.rng = numpy.random.default_rng(info.seed)" in finding.fixes[0].paste


def test_a_seed_that_is_the_same_in_all(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loading(loader("aaaa", source="numpy.random")))
    assert "numpy.random.seed(torch.initial_seed() % 2**32)" in finding.fixes[0].paste


def test_some_workers_of_one_rank(findings: Findings) -> None:
    section = loading(loader("abcd"), loader("abbc", rank=1))
    (finding,) = findings(CAUSE, section)
    assert finding.where.ranks == (1,)
    assert "workers 1, 2" in finding.because
    assert finding.evidence[0].value == 3


def test_a_stream_may_mean_it(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loading(loader("aa", kind="iterable")))
    assert finding.severity is Severity.NOTE
    assert finding.confidence is Confidence.POSSIBLE


@pytest.mark.parametrize(
    "section",
    [
        loader("abcd"),
        # Nobody draws from it.
        loader("aaaa", used=False),
        loader("a"),
        loader(""),
    ],
)
def test_quiet_where_each_worker_has_its_own(findings: Findings, section: Loader) -> None:
    assert findings(CAUSE, loading(section)) == ()


def test_quiet_about_ranks_with_the_same_seed(findings: Findings) -> None:
    section = loading(loader("ab"), loader("ab", rank=1))
    assert findings(CAUSE, section) == ()
