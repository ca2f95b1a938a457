"""The dashboard and the alerts of the package name only what a scrape has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import promql_parser
import pytest

from rowlock import PipelineManager
from rowlock.insight import Observer
from rowlock.telemetry.metrics import METRICS
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Volume, VolumePipeline
from ..pipelines.scenes import add, until
from .scrapes import Series, registered, scraped

GRAFANA = files("rowlock.telemetry").joinpath("grafana")
BOARD: dict[str, Any] = json.loads(GRAFANA.joinpath("rowlock.json").read_text(encoding="utf-8"))
ALERTS = GRAFANA.joinpath("alerts.yaml").read_text(encoding="utf-8")
BY_PROMETHEUS = frozenset({"instance", "job", "le"})
"""Labels that a scrape gets from Prometheus, and that of buckets."""


def queries() -> dict[str, str]:
    """Return every query of the package, by where it stands."""
    panels = {f"panel {one['title']}": one["targets"][0]["expr"] for one in BOARD["panels"]}
    found = re.findall(r"- alert: (\w+)\n +expr: >-\n +(.+)\n", ALERTS)
    alerts = {f"alert {name}": query for name, query in found}
    return {
        where: query.replace("$__rate_interval", "5m").replace("$pipeline", ".*")
        for where, query in (panels | alerts).items()
    }


QUERIES = queries()


def unknown_to(series: Series, query: str) -> list[str]:
    """Return what a query names and `series` do not have."""
    text = promql_parser.parse(query).prettify()
    known: dict[str, set[str]] = {}
    for name, labels in series:
        known.setdefault(name, set()).update(label for label, _ in labels)
    found = []
    named: set[str] = set()
    for name, matchers in re.findall(r"(rowlock_\w+)(?:\{([^}]*)\})?", text):
        labels = set(re.findall(r"(\w+)(?==|!)", matchers))
        values = dict(re.findall(r'(\w+)="([^"]+)"', matchers))
        named |= known.get(name, set())
        if name not in known:
            found.append(name)
        elif not labels <= known[name] | BY_PROMETHEUS:
            found.append(f"{name}: {labels - known[name]}")
        elif not any(one == name and values.items() <= dict(has).items() for one, has in series):
            found.append(f"{name}: {values}")
    for group in re.findall(r"\bby \(([^)]*)\)", text):
        labels = {one.strip() for one in group.split(",")}
        found += sorted(labels - named - BY_PROMETHEUS)
    return found


@virtual_time
async def live_series(virtual_database: TemporaryDatabase, into: Series) -> None:
    """Scrape a replica that has worked on a row."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline()
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(lambda: pipeline.statistics().counters["applied"])
        into.update(scraped(registered(Observer(manager))))


def test_queries_name_what_a_scrape_has(virtual_database: TemporaryDatabase) -> None:
    """A panel would stay empty, and an alert silent, for ever."""
    series: Series = {}
    live_series(virtual_database=virtual_database, into=series)
    assert {
        where: found for where, query in QUERIES.items() if (found := unknown_to(series, query))
    } == {}


@pytest.mark.parametrize(
    "query",
    [
        "rowlock_gone_total",
        'rowlock_outcomes_total{outcome="lost"}',
        'rowlock_queued{tenant="a"}',
        "sum by (owner) (rowlock_queued)",
    ],
)
def test_planted_unknown_name(virtual_database: TemporaryDatabase, query: str) -> None:
    """The test above would pass any query."""
    series: Series = {}
    live_series(virtual_database=virtual_database, into=series)
    assert len(unknown_to(series, query)) == 1


def test_all_queries_were_found() -> None:
    """The tests above would look at none."""
    assert len(QUERIES) == len(BOARD["panels"]) + ALERTS.count("- alert:")
    assert len(METRICS) > 20


def test_each_alert_names_its_command() -> None:
    """Whoever is woken would not know where to look."""
    commands = re.findall(r"command: >-\n +(.+)\n", ALERTS)
    assert len(commands) == ALERTS.count("- alert:")
    assert all(one.startswith("rowlock ") for one in commands)


def test_prometheus_takes_the_alerts() -> None:
    """Prometheus would refuse the file, and with it all rules of the host."""
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs promtool: apt-get install -y prometheus")
        pytest.skip("needs promtool: apt-get install -y prometheus")
    checked = subprocess.run(
        [promtool, "check", "rules", str(GRAFANA.joinpath("alerts.yaml"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
