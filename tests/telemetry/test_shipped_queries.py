"""The dashboard and the alerts of the package name only what a scrape has."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from sqlalchemy import MetaData

from rowlock import Apply, PipelineItem, PipelineManager
from rowlock.insight import Observer, insight_tables
from rowlock.telemetry.metrics import METRICS
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, RunPipeline
from ..pipelines.scenes import add, until
from .promtool import findings_of, judged
from .scrapes import Series, registered, scraped

TABLES = insight_tables(MetaData(), controls=False)
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
    """Scrape a replica that has worked on rows, on one for so long that its lease was renewed."""

    async def work(item: PipelineItem[Any]) -> Apply:
        await asyncio.sleep(40 if item.id == 1 else 0)
        return Apply({"status": "done"})

    await add(virtual_database, Run(id=1), Run(id=2))
    pipeline = RunPipeline(answer=work)
    assert TABLES.replicas is not None
    await virtual_database.create_tables(TABLES.replicas.metadata)
    async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
        await until(lambda: pipeline.statistics().counters["applied"] == 2)
        observer = Observer(manager, tables=TABLES, census=True)
        await observer.beat()
        assert observer._census is not None
        await observer._census.count()
        into.update(scraped(registered(observer)))


def test_queries_name_what_a_scrape_has(virtual_database: TemporaryDatabase) -> None:
    """A panel would stay empty, and an alert silent, for ever."""
    series: Series = {}
    live_series(virtual_database=virtual_database, into=series)
    assert {
        where: found for where, query in QUERIES.items() if (found := unknown_to(series, query))
    } == {}


def test_no_panel_is_without_data(virtual_database: TemporaryDatabase, tmp_path: Path) -> None:
    """A person would look at empty panels, and not know whether that is well."""
    series: Series = {}
    live_series(virtual_database=virtual_database, into=series)
    document: dict[str, Any] = {
        "interval": "1m",
        "input_series": [*_scrapes(series)],
        "promql_expr_test": [],
    }
    for where, query in QUERIES.items():
        if where.startswith("panel"):
            # What is no number equals nothing, itself included.
            has_data = f"count(({query}) == ({query})) > bool 0"
            expected = [{"labels": "{}", "value": 1}]
            document["promql_expr_test"].append(
                {"expr": has_data, "eval_time": "10m", "exp_samples": expected}
            )
    assert findings_of(tmp_path, document) == ""
    document["promql_expr_test"][0]["expr"] = "count(rowlock_gone) > bool 0"
    assert "rowlock_gone" in findings_of(tmp_path, document)


def _scrapes(series: Series) -> Iterator[dict[str, str]]:
    """Yield each series as it was at ten scrapes: what counts has grown evenly up to its value."""
    for (name, labels), number in series.items():
        told = ", ".join(f'{label}="{value}"' for label, value in [("instance", "a"), *labels])
        grows = name.endswith(("_total", "_bucket", "_count", "_sum"))
        values = f"0+{number}x10" if grows else f"{number}x10"
        yield {"series": f"{name}{{{told}}}", "values": values}


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
    checked = judged("check", Path(str(GRAFANA.joinpath("alerts.yaml"))))
    assert checked.returncode == 0, checked.stdout + checked.stderr
