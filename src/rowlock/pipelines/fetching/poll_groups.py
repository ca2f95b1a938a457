"""Polls for many idle pipelines at once.

The one idea: a pipeline that has found nothing for a while polls its table once per longest fetch delay. Two hundred of them in one
process would send fifty transactions a second to hear that there is nothing to do. So idle pipelines with the same fetch delays
share a poll: the first whose delay is over asks for all of its group, in one statement. Those for which there is a row fetch it by
themselves; the others rest anew.

A poll only saves fetches. A pipeline that is hinted, at work, failing, or without a group fetches as if there were none; so does
each member of a group whose poll failed.

Source: timer slack, by which Linux lets timers expire together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.clock import monotonic
from rowlock.database.binds import bind_of
from rowlock.leases.claim_request import ClaimRequest
from rowlock.leases.poll import Poll, poll, poll_of
from rowlock.logs import get_logger
from rowlock.rows.leased_table import LeasedTable

logger = get_logger(__name__)

MEMBERS_MAX = 20
"""Most pipelines of one group: their conditions stand in one statement."""
POLL_TIMEOUT = timedelta(seconds=2)
"""Longest time of a poll. The table of one member may be locked as a whole, and all others wait for it."""
REST_AFTER_FAILURE_S = 60.0
"""How long a group whose poll failed does without, in seconds."""


class Member(Protocol):
    """A pipeline's fetcher, seen from its group."""

    @property
    def is_idle(self) -> bool:
        """Whether it has found nothing for so long that it rests for its longest fetch delay, and nothing else concerns it."""
        ...

    @property
    def rests_until(self) -> float:
        """When its rest ends, on the monotonic clock."""
        ...

    def unchanged_request(self) -> ClaimRequest | None:
        """Return what its next claim would ask for, or None if that is not what the last one did.

        The statement of a poll is kept for as long as all that it asks for stays the same.
        """
        ...

    def delay_s(self) -> float:
        """Return for how long it would rest if it found nothing now, in seconds."""
        ...

    def begin_poll(self, poll: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `poll`, which the end of the pipeline waits for."""
        ...

    def found_nothing(self, delay_s: float) -> None:
        """Rest for so long, as after a fetch that found nothing."""
        ...

    def found_something(self) -> None:
        """Fetch now."""
        ...


@dataclass(eq=False)
class PollGroup:
    """Pipelines of one process with the same fetch delays, the same database and the same context variables.

    A host may go by a context variable: in `ready`, or where its sessions say which tenant they are (row-level security).

    Attributes:
        variables: the context in which its members were started.
        members: those that run.
    """

    session_factory: async_sessionmaker[AsyncSession]
    variables: Context = field(default_factory=copy_context)
    members: list[Member] = field(default_factory=list)
    _polling: asyncio.Task[None] | None = None
    _last: tuple[list[ClaimRequest], Poll] | None = None
    _rests_until: float = float("-inf")

    def poll_for(self, member: Member) -> asyncio.Task[None] | None:
        """Poll for `member`, whose rest is over, and for all others that are idle; None if it is to fetch by itself.

        Where a poll is under way already, that is the one. What it found was passed on when it ends; a member that still has no
        new rest then fetches by itself.
        """
        if len(self.members) == 1 or monotonic() < self._rests_until or not self.is_of(copy_context()):
            return None
        if self._polling is None or self._polling.done():
            self._polling = member.begin_poll(self._poll(member))
        return self._polling

    def is_of(self, variables: Context) -> bool:
        """Whether its members were started with the same `variables`."""
        try:
            return bool(self.variables == variables)
        except Exception:  # noqa: BLE001 - values of the host's own are compared: in doubt, no
            return False

    async def _poll(self, member: Member) -> None:
        requests = {
            one: request for one in self.members if one.is_idle and (request := self._request_of(one)) is not None
        }
        if member not in requests or len(requests) == 1:
            return
        rests, asked = {one: one.rests_until for one in requests}, [*requests.values()]
        try:
            found = await poll(self.session_factory, asked, self._statement(asked), timeout=POLL_TIMEOUT)
        except Exception:
            # A fetch of its own shows whether it is the database, and logs it; or it is one of the other conditions.
            logger.debug("A shared poll failed; each pipeline fetches by itself", exc_info=True)
            self._rests_until = monotonic() + REST_AFTER_FAILURE_S
            return
        delay_s = member.delay_s()
        for number, one in enumerate(requests):
            # One that was hinted meanwhile has fetched by itself.
            if one.rests_until != rests[one]:
                continue
            if number in found:
                one.found_something()
            else:
                one.found_nothing(delay_s)

    @staticmethod
    def _request_of(member: Member) -> ClaimRequest | None:
        try:
            return member.unchanged_request()
        except Exception:  # noqa: BLE001 - host code: its own fetch fails, and tells of it
            return None

    def _statement(self, requests: list[ClaimRequest]) -> Poll:
        kept = None if self._last is None else self._last[0]
        if kept is None or [id(one.statements) for one in kept] != [id(one.statements) for one in requests]:
            self._last = (requests, poll_of(requests))
        assert self._last is not None
        return self._last[1]


class PollGroups:
    """The groups of one manager."""

    def __init__(self, session_factory: async_sessionmaker[AsyncSession]) -> None:
        self._session_factory = session_factory
        self._groups: dict[Hashable, list[PollGroup]] = {}

    def join(self, member: Member, leased: LeasedTable, fetch_delays_s: tuple[float, ...]) -> PollGroup:
        """Return the group that `member` belongs to from now on; called in its own context."""
        # A statement goes to one database.
        alike = self._groups.setdefault((bind_of(self._session_factory(), leased).engine, fetch_delays_s), [])
        here = copy_context()
        group = next((group for group in alike if len(group.members) < MEMBERS_MAX and group.is_of(here)), None)
        if group is None:
            group = PollGroup(self._session_factory)
            alike.append(group)
        group.members.append(member)
        return group

    def leave(self, member: Member) -> None:
        """Let `member` go."""
        for group in (group for alike in self._groups.values() for group in alike):
            if member in group.members:
                group.members.remove(member)
