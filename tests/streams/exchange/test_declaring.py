"""Further stages, as a host declares them."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock.errors import ConfigurationError
from rowlock.streams import StepContext, StreamFlow, Streams
from rowlock.streams.program import STAGES_MAX
from rowlock.testing import TemporaryDatabase

from .ledger import open_ledger

pytestmark = pytest.mark.either_database


async def new_flow(database: TemporaryDatabase, name: str = "flow") -> StreamFlow[Any]:
    ledger = await open_ledger(database)
    return ledger.streams.flow(name, ledger.transfer)


def nothing(step: StepContext, key: str, state: None, events: list[Any]) -> None:
    """Handle events by key."""


def nothing_else(step: StepContext, key: str, state: None, events: list[Any]) -> None:
    """Do the same."""


async def test_what_is_declared_wrongly_is_told_at_once(database: TemporaryDatabase) -> None:
    """A host would hear of it when its service starts, or from a row."""
    flow = await new_flow(database)
    second = flow.exchange("second", int)
    with pytest.raises(ConfigurationError, match="an exchange 'second' already"):
        second.exchange("second", int)
    with pytest.raises(ConfigurationError, match="without '/'"):
        flow.exchange("one/two", int)
    with pytest.raises(TypeError):
        flow.exchange("third", complex)
    flow.by_key()(nothing)
    with pytest.raises(ConfigurationError, match="'second' has no handler"):
        _ = flow.program
    second.by_key()(nothing)
    with pytest.raises(ConfigurationError, match=r"two stages .* named 'nothing'"):
        _ = flow.program


async def test_stages_have_a_bound(database: TemporaryDatabase) -> None:
    """A step could pass any number of stages, each of which waits for all shards."""
    flow = await new_flow(database)
    for number in range(1, STAGES_MAX):
        flow.exchange(f"stage {number}", int)
    with pytest.raises(ConfigurationError, match="more than 8 stages"):
        flow.exchange("one more", int)


async def test_a_flow_that_runs_gets_no_more_stages(database: TemporaryDatabase) -> None:
    """Replicas would run without a stage that the host takes for part of the flow."""
    flow = await new_flow(database)
    flow.by_key()(nothing)
    assert not flow.program.has_exchange
    with pytest.raises(ConfigurationError, match="runs already"):
        flow.exchange("second", int)


async def test_a_flow_is_known_by_its_stages(database: TemporaryDatabase) -> None:
    """Messages would be read as what they are not, or sent to a stage that is no more."""
    fingerprints = set()
    for name, type_ in (("second", int), ("second", str), ("other", int), (None, None)):
        ledger = await open_ledger(database)
        streams = Streams(ledger.streams.tables.flow_model)
        flow: StreamFlow[Any] = streams.flow("flow", ledger.transfer)
        flow.by_key()(nothing)
        if name is not None:
            flow.exchange(name, type_).by_key()(nothing_else)
        fingerprints.add(flow.program.fingerprint)
    assert len(fingerprints) == 4


async def test_a_stage_is_sent_to_by_earlier_ones_alone(database: TemporaryDatabase) -> None:
    """A message would go round in circles within a step, or to a flow that never reads it."""
    ledger = await open_ledger(database)
    first, second = ledger.flow.program.stages
    assert dict(first.later) == {"postings": ledger.postings}
    assert dict(second.later) == {}
