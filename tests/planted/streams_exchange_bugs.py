"""Guards of second stages and of the exchange of messages between shards; and the tests that miss
them.
"""

from __future__ import annotations

from bug import Bug

ACTIONS = "tests/streams/shards/test_next_action.py"

EXCHANGE_BUGS = (
    Bug(
        "a range that has sent is split within its step",
        "streams/shards/next_action.py",
        "_of_run",
        " and not shard.has_sent",
        "",
        (f"{ACTIONS}::test_a_range_that_has_sent_is_not_split",),
    ),
)
