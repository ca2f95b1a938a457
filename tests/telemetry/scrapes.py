"""A scrape as these tests read it: parsed from the text that Prometheus receives."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rowlock.telemetry.metrics import Source
from rowlock.telemetry.prometheus import register

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def registered(*sources: Source) -> CollectorRegistry:
    """Return a registry that shows `sources`."""
    registry = CollectorRegistry()
    register(*sources, registry=registry)
    return registry


def scraped(registry: CollectorRegistry) -> Series:
    return parsed(generate_latest(registry))


def parsed(text: bytes) -> Series:
    """Return each series of a text with its value."""
    families = text_string_to_metric_families(text.decode())
    samples = [sample for family in families for sample in family.samples]
    series = {(one.name, frozenset(one.labels.items())): one.value for one in samples}
    assert len(series) == len(samples), "a series stands there twice"
    return series


def value(series: Series, name: str, **labels: Any) -> float:
    return series[f"rowlock_{name}", frozenset(labels.items())]
