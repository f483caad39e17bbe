"""The Grafana dashboard: its queries, answered by a real Prometheus that scrapes a real run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from ddoctor.training.run_metrics import RunMetrics
from ddoctor.training.whole_run import Figures
from tests.conftest import free_port
from tests.training.conftest import MakeTraining
from tests.training.test_whole_run import SLOW, followed, script
from tests.whole_run import stretch

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "grafana.json").read_text())
NAME = re.compile(r"\bddoctor_\w+")
FIGURES = Figures(steps={0: 10}, events={"slower": 1}, hung=False, stretch=stretch(0, forward=1.0))
SCRAPE = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: training
    static_configs: [targets: ["127.0.0.1:{port}"]]
"""


def queries() -> Iterator[str]:
    """What its panels and its marks ask, of this job."""
    for one in (*DASHBOARD["panels"], *DASHBOARD["annotations"]["list"]):
        for target in one.get("targets", (one,)):
            yield target["expr"].replace("$job", "training").replace("$__rate_interval", "10s")


def test_it_shows_each_metric_and_no_other() -> None:
    metrics = RunMetrics(str(free_port()))
    metrics.show(FIGURES)
    served = {sample.name for metric in metrics.collect() for sample in metric.samples}
    assert set(NAME.findall(" ".join(queries()))) == served
    guide = (DOCS / "guides/whole-run.md").read_text()
    assert served <= set(NAME.findall(guide))


def test_it_can_be_imported() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers) == 7
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert {one["name"] for one in DASHBOARD["templating"]["list"]} == {"datasource", "job"}


@pytest.mark.ward
def test_prometheus_answers_its_queries(training: MakeTraining, tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed")
    port = free_port()
    one = training(script(SLOW, 2_000))
    options = followed(tmp_path, f"--prometheus={port}")
    with one.started(*one.under(*options)), prometheus(tmp_path, port) as ask:
        answers: dict[str, Any] = {}
        until = time.monotonic() + 90
        while len(answers) < len({*queries()}) and time.monotonic() < until:
            time.sleep(1)
            answers |= {query: found for query in queries() if (found := ask(query))}
        assert answers.keys() == {*queries()}
    for query, found in answers.items():
        labels: Mapping[str, str] = found[0]["metric"]
        assert labels.get("job", "training") == "training", query


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[Any]:
    """A server that scrapes this port: a function that asks it."""
    (folder / "prometheus.yml").write_text(SCRAPE.format(port=port))
    own = f"127.0.0.1:{free_port()}"
    command = (
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'series'}",
        f"--web.listen-address={own}",
    )

    def ask(query: str) -> list[Any]:
        try:
            with urlopen(f"http://{own}/api/v1/query?{urlencode({'query': query})}") as answer:
                told = json.load(answer)
        except URLError:
            # It has not started yet.
            return []
        assert told["status"] == "success", told
        found: list[Any] = told["data"]["result"]
        return found

    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield ask
        finally:
            process.terminate()
