"""Grafana's dashboard: it asks for what the Collector shows, and Prometheus can answer it."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.backends.programs import ROOT, Program, get
from tests.backends.ranks import samples
from tests.polling import poll

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.backends.programs import Collector
    from tests.backends.ranks import Rank

FOLDER = ROOT / "collector"
DASHBOARD = json.loads((FOLDER / "grafana" / "dashboards" / "modtrack.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
QUERIES = [query["expr"] for panel in PANELS for query in panel["targets"] if "expr" in query]
VARIABLES = DASHBOARD["templating"]["list"]

# Counters that are there from the first loss on.
ONLY_WHEN_LOST = {"otelcol_exporter_send_failed_spans", "otelcol_exporter_enqueue_failed_spans"}


class Prometheus(Program):
    """Prometheus with our file, but for its addresses and a scrape every second."""

    health_path = "/-/ready"

    def __init__(self, binary: Path, folder: Path, collector: Collector) -> None:
        text = (FOLDER / "prometheus.yaml").read_text()
        for ours, there in (
            ("collector:8889", collector.prometheus_address),
            ("collector:8888", collector.telemetry_address),
            ("scrape_interval: 15s", "scrape_interval: 1s"),
        ):
            assert ours in text
            text = text.replace(ours, there)
        super().__init__(binary, folder, text)

    @property
    def environment(self) -> dict[str, str]:
        """None."""
        return {}

    @property
    def arguments(self) -> list[str]:
        """As in docker-compose.yml."""
        return [
            f"--config.file={self.config}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={self.health_address}",
            "--enable-feature=exemplar-storage",
        ]

    def ask(self, path: str, **parameters: object) -> Any:
        """The data of an answer of its API; AssertionError where it is an error."""
        url = f"http://{self.health_address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        answer = get(url)
        assert answer, f"refused: {parameters}"
        return json.loads(answer)["data"]


def filled(query: str) -> str:
    """A query with values for Grafana's variables."""
    values = {"$service": ".*", "$rank": ".*", "$__rate_interval": "10s", "$__range": "1m"}
    for name, value in values.items():
        query = query.replace(name, value)
    assert "$" not in query.replace('"$1"', "")
    return query


def test_its_datasources_are_provisioned() -> None:
    """Every panel, query, variable and exemplar link names one that exists."""
    file = FOLDER / "grafana" / "provisioning" / "datasources" / "datasources.yaml"
    sources = yaml.safe_load(file.read_text())["datasources"]
    provisioned = {source["uid"]: source for source in sources}
    used = [panel["datasource"]["uid"] for panel in PANELS]
    used += [query["datasource"]["uid"] for panel in PANELS for query in panel["targets"]]
    used += [variable["datasource"]["uid"] for variable in VARIABLES]
    [link] = provisioned["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert {*used, link["datasourceUid"]} == set(provisioned) == {"prometheus", "tempo"}


def test_its_panels_do_not_overlap() -> None:
    """Every panel has an id and a place of its own, inside the 24 columns."""
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken = [
        (x, y)
        for grid in (panel["gridPos"] for panel in PANELS)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def test_every_panel_says_what_it_shows() -> None:
    """With a title and a description."""
    assert all(panel["title"] and panel["description"] for panel in PANELS)


def test_it_asks_for_what_is_there(
    to_backend: Callable[..., tuple[Collector, Collector]], make_rank: Callable[..., Rank]
) -> None:
    """Every metric, and every label of it, that a query names is one that the Collector shows."""
    collector, _ = to_backend("config.yaml")
    make_rank(collector).step()

    def complete() -> str | None:
        page = collector.metrics()
        return page if "traces_span_metrics" in page and "modtrack_collective" in page else None

    page = poll(complete, "metrics") + (get(f"http://{collector.telemetry_address}/metrics") or "")
    shown: dict[str, set[str]] = {}
    for name, labels, _ in samples(page):
        shown.setdefault(name, set()).update(labels)
    asked: dict[str, set[str]] = {}
    for query in [*QUERIES, *(variable["definition"] for variable in VARIABLES)]:
        grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \((.*?)\)", query)))) - {"phase"}
        pattern = r"\b((?:traces_span_|modtrack_collective_|otelcol_)\w+)(?:\{(.*?)\})?"
        for name, matchers in re.findall(pattern, query):
            used = set(re.findall(r"(\w+)=", matchers)) | grouped
            asked[name] = asked.get(name, set()) | used
    assert len(asked) > 5
    for name in set(asked) - ONLY_WHEN_LOST:
        assert name in shown
        assert asked[name] <= shown[name], name


def test_prometheus_answers_every_query(
    tmp_path: Path,
    to_backend: Callable[..., tuple[Collector, Collector]],
    make_rank: Callable[..., Rank],
) -> None:
    """A real one scrapes two ranks' metrics, has a value for every panel, and leads to traces."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("Prometheus is not installed")
    collector, _ = to_backend("config.yaml")
    ranks = [make_rank(collector, number) for number in range(2)]
    with Prometheus(Path(binary), tmp_path / "prometheus", collector) as prometheus:
        waiting = [query for query in QUERIES if not any(name in query for name in ONLY_WHEN_LOST)]

        def answered() -> bool:
            for rank in ranks:
                rank.step(error=True)
            waiting[:] = [
                query
                for query in waiting
                if not prometheus.ask("query", query=filled(query))["result"]
            ]
            return not waiting

        poll(answered, "values", 30)
        for query in QUERIES:
            prometheus.ask("query", query=filled(query))
        step = 'traces_span_metrics_duration_seconds_bucket{span_name="train_step"}'
        now = time.time()
        found = prometheus.ask("query_exemplars", query=step, start=now - 600, end=now + 600)
        ids = {exemplar["labels"]["trace_id"] for one in found for exemplar in one["exemplars"]}
        assert ids
        assert ids <= {span.trace_id for rank in ranks for span in rank.sent()}
