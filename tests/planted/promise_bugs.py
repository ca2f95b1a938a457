"""Bugs that other libraries of this kind have had, as far as no other list has them, and the
tests that must notice.
"""

from __future__ import annotations

from bug import Bug

CLAIM = "tests/leases/test_claim.py"

PROMISE_BUGS = (
    Bug(
        "a claim goes by the host's clock",
        "rows/eligibility.py",
        "is_free",
        "database_now",
        '__import__("rowlock").clock.utc_now',
        (
            f"{CLAIM}::test_an_expired_lease_is_taken_over",
            f"{CLAIM}::test_a_live_lease_is_never_stolen",
        ),
    ),
    Bug(
        "items are queued before they are tracked",
        "pipelines/fetching/fetcher.py",
        "Fetcher._queue",
        "_heartbeater.track(queued)\n        self.context.queue.put",
        "context.queue.put(queued)\n        self._heartbeater.track",
        (
            "tests/pipelines/test_fetcher_failures.py::test_items_are_tracked_before_they_are_queued",
        ),
    ),
    Bug(
        "an outcome is two transactions",
        "pipelines/settling/transactions.py",
        "OutcomeTransactions.write_alone",
        "await self._within(session, connection, pending, now=now, stamp=stamp)",
        "async with self.context.session_factory.begin() as other:\n                    await"
        " pending.also(other, now)",
        ("tests/pipelines/test_writer.py::test_also_is_part_of_the_transaction",),
    ),
    Bug(
        "related rows are freed whoever holds them",
        "leases/acquire.py",
        "release_keys",
        "held_under(leased, keys, token)",
        'leased.key.in_(keys) & leased.column("lock_owner").is_not(None)',
        ("tests/pipelines/test_related_locks.py::test_the_lock_of_another_item_stands",),
    ),
)
