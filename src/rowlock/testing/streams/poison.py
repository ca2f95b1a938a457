"""A key whose events the handler of a flow cannot process, and what is to become of it and of the
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final

from rowlock.streams.computing.compute import DEAD_LETTERS
from rowlock.streams.computing.handlers import StageHandler
from rowlock.streams.program import FlowProgram
from rowlock.testing.streams.recorded import read_shards
from rowlock.testing.streams.records import FlowRecord
from rowlock.testing.streams.running import connected, recorded
from rowlock.testing.streams.trial import FlowTrial

__all__ = ["PoisonedFlow"]

SHARDS: Final = 4


class PoisonError(Exception):
    pass


@dataclass
class PoisonedFlow:
    """A flow whose first handler fails for one key: the first that it gets."""

    trial: FlowTrial
    key: Any = field(default=None, init=False)

    async def check(self) -> None:
        """Check that the key is set aside, or its shard parked, and nothing else is lost."""
        flow, program = self.trial.flow, self.trial.flow.program
        poisoned = self._poisoned(program)
        changes: dict[str, Any] = {
            # Shards that send each other messages wait for one that is parked.
            "shards": 1 if program.has_exchange else SHARDS,
            "settings": program.settings.model_copy(update={"failures_max": 1}),
        }
        await self.trial.add_some(self.trial.events)
        await self.trial.work(**changes, stages=poisoned.stages)
        if program.stages[0].dead_letters:
            await self._check_set_aside(poisoned)
            return
        shards = await connected(self.trial.sessions, program, lambda c: read_shards(c, program))
        parked = [one.parked for one in shards if one.parked is not None]
        assert len(parked) == 1, f"{flow.name}: {len(parked)} shards are parked, not that of a key"
        assert PoisonError.__name__ in parked[0], f"{flow.name}: {parked[0]}"
        async with self.trial.sessions.begin() as session:
            await flow.unpark(session)
        await self.trial.work(**changes)
        record = await recorded(self.trial.sessions, flow)
        self._compare(record, await self.trial.reference(), "once its handler is mended")

    async def _check_set_aside(self, poisoned: FlowProgram) -> None:
        flow = self.trial.flow
        record = await recorded(self.trial.sessions, flow)
        keys = {one.key for one in record.results[DEAD_LETTERS]}
        assert keys == {self.key}, f"{flow.name}: dead letters are of {keys}, not of {self.key!r}"
        self._compare(record, await self.trial.reference(poisoned), "without that key")
        if not poisoned.has_exchange:
            whole = await self.trial.reference()
            name = poisoned.stages[0].name
            left = record.states[name], _without(whole.states[name], self.key)
            assert left[0] == left[1], (
                f"{flow.name}: a key that fails changes states of others: {left[0]}, not {left[1]}"
            )

    def _compare(self, record: FlowRecord, expected: FlowRecord, when: str) -> None:
        found = record.differences(expected)
        assert not found, (
            f"{self.trial.flow.name}, whose handler fails for {self.key!r}, comes to something else"
            f" {when}: {'; '.join(found)}"
        )

    def _poisoned(self, program: FlowProgram) -> FlowProgram:
        first = program.stages[0]
        call = first.call

        @wraps(call, updated=())
        def failing(*args: Any) -> Any:
            keys = _keys_of(first, args)
            if self.key is None and keys:
                self.key = keys[0]
            if self.key in keys:
                raise PoisonError(f"the key {self.key!r}")
            return call(*args)

        return replace(program, stages=[replace(first, call=failing), *program.stages[1:]])


def _keys_of(stage: StageHandler, args: tuple[Any, ...]) -> list[Any]:
    if stage.kind == "batch":
        return list(args[1].keys)
    return [tuple(args[1].key.values()) if stage.kind == "fold" else args[1]]


def _without(states: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {one: state for one, state in states.items() if one != key}
