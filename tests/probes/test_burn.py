"""Two ranks that compute without a break: sound ones, and one that is wrong once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.cluster import local_probes
from ddoctor.errors import DoctorError
from ddoctor.evidence.probes import Burn, ProbeRuns
from ddoctor.options import parse
from ddoctor.probing import catalog
from ddoctor.probing.options import ProbeOptions
from tests.conftest import Findings

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def burns(tmp_path_factory: pytest.TempPathFactory) -> tuple[Burn, Burn]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        probes = ["tests.faulty.short_burn", "tests.faulty.wrong_burn"]
        folder = tmp_path_factory.mktemp("burn")
        sound, wrong, runs = local_probes.measure(probes, limit=120, data=folder)
    assert isinstance(runs, ProbeRuns)
    assert [run.outcome for run in runs.runs] == ["completed", "completed"]
    assert isinstance(sound, Burn)
    assert isinstance(wrong, Burn)
    return sound, wrong


@pytest.mark.ward
def test_sound_ranks_stay_right(burns: tuple[Burn, Burn], findings: Findings) -> None:
    sound, _ = burns
    assert sound.seconds == 2.0
    assert [rank.place.rank for rank in sound.ranks] == [0, 1]
    for rank in sound.ranks:
        assert (rank.wrong, rank.wrong_after, rank.expected, rank.got) == (0, None, None, None)
        assert rank.products >= 2
        assert len(rank.rates) == 2
        assert all(1e-4 < rate < 100 for rate in rank.rates)
        assert rank.temperatures == ()
        assert rank.limited_by == ()
    assert findings("wrong-collective-result", sound) == ()
    assert findings("uneven-gpu-speed", sound) == ()
    assert findings("gpu-thermal-throttling", sound) == ()


def test_one_wrong_product_of_many_is_seen(burns: tuple[Burn, Burn], findings: Findings) -> None:
    _, wrong = burns
    first, second = wrong.ranks
    assert first.wrong == 0
    assert (second.wrong, second.products > 1) == (1, True)
    assert second.wrong_after is not None
    (finding,) = findings("wrong-collective-result", wrong)
    assert finding.where.ranks == (1,)
    assert finding.where.hosts == (second.place.host,)
    assert f"1 of {second.products} products" in finding.because


def test_it_runs_only_where_it_is_asked_for() -> None:
    assert "burn" in catalog.names()
    assert "burn" not in catalog.usual()


@pytest.mark.parametrize("seconds", ["0", "-3", "nan", "inf", "long"])
def test_what_is_no_time_is_refused(seconds: str) -> None:
    with pytest.raises(DoctorError, match="--burn"):
        parse(ProbeOptions, [f"--burn={seconds}"], "probe")
