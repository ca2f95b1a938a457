"""The stories of flows: what a replica does while it dies, freezes or loses its connection."""

from __future__ import annotations

from functools import partial
from typing import Final

from . import host, plays
from .host import Base
from .story import FlowStory, at_the_end, never, of

__all__ = ["STORIES", "Base"]

WRITES: Final = of("write steps")
CUTS: Final = ("look for new rows", "cut a step")
READS: Final = ("look at a flow", "read the rows of steps", "read the states of steps")
# More than there are states, and so few that a step is cut alone although rows for many are there.
one_by_one = partial(host.balances, 7, dirty_keys_max=19)

flow_story = partial(
    FlowStory,
    play_it=plays.run,
    before=plays.nothing_before,
    heir=plays.finish,
    when=never,
    rows=plays.payments,
)

STORIES: Final = {
    story.name: story
    for story in (
        flow_story(
            "creation",
            "a flow and its shards are created",
            "INSERT INTO rowlock_stream_shards",
            host.balances,
            when=of("look for a flow", "look where a flow begins", "create a flow"),
        ),
        flow_story(
            "append",
            "a producer adds numbered batches to a log",
            "UPDATE rowlock_stream_appends",
            host.clicks,
            play_it=plays.append,
            rows=list,
            heir=plays.append_again,
        ),
        flow_story(
            "cut",
            "steps are cut",
            "INSERT INTO rowlock_stream_steps",
            host.balances,
            when=of(*CUTS),
        ),
        flow_story(
            "read",
            "rows and states of steps are read",
            "SELECT rowlock_stream_state",
            host.balances,
            when=of(*READS),
        ),
        flow_story(
            "step-1",
            "steps are written, states with each",
            "INSERT INTO rowlock_stream_state",
            host.balances,
            when=WRITES,
        ),
        flow_story(
            "step-7",
            "steps are written, states with the seventh",
            "INSERT INTO rowlock_stream_outputs",
            partial(host.balances, 7),
            when=WRITES,
        ),
        flow_story(
            "checkpoint-7",
            "the states of seven steps are written",
            "INSERT INTO rowlock_stream_state",
            partial(one_by_one, step_rows_max=2),
            when=of("write steps", skip=5),
            rows=partial(plays.payments, 16),
        ),
        flow_story(
            "replay-7",
            "steps are done again after a loss",
            "INSERT INTO rowlock_stream_outputs",
            one_by_one,
            play_it=plays.replay,
            when=of(*READS, "write steps"),
        ),
        flow_story(
            "release-7",
            "a replica stops: versions are written, leases released",
            "INSERT INTO rowlock_stream_state",
            partial(host.balances, 7),
            when=at_the_end,
        ),
        flow_story(
            "split",
            "a shard is divided",
            "INSERT INTO rowlock_stream_shards",
            partial(host.balances, shards=1),
            before=plays.resharded_before(2),
            when=of("split a shard"),
        ),
        flow_story(
            "join",
            "two shards become one",
            "DELETE FROM rowlock_stream_shards",
            host.balances,
            before=plays.resharded_before(1),
            when=of("join two shards"),
            shards=1,
        ),
        flow_story(
            "table",
            "messages are sent and received",
            "INSERT INTO rowlock_stream_exchange",
            host.ledger,
            when=of("send messages", "compare messages", "receive messages"),
        ),
        flow_story(
            "expiry",
            "what is no longer needed is deleted",
            "DELETE FROM rowlock_stream_log",
            host.clicks,
            before=plays.clicks_before,
            when=of("delete what has expired"),
            rows=list,
            days=30,
        ),
        flow_story(
            "ack",
            "a consumer reads and acknowledges steps",
            "INSERT INTO invoiced",
            host.balances,
            play_it=plays.consume,
            before=plays.all_done_before,
            heir=plays.invoice,
        ),
        flow_story(
            "fold",
            "steps are written into a host's table",
            "INSERT INTO balances",
            host.folded,
            when=WRITES,
        ),
        flow_story(
            "outbox",
            "results become rows of an outbox",
            "INSERT INTO alarms",
            host.alarming,
            when=WRITES,
        ),
        flow_story(
            "delivery",
            "the same, while others of these rows are delivered",
            "INSERT INTO alarms",
            host.alarming,
            play_it=plays.deliver,
            heir=plays.settle_and_deliver,
            when=WRITES,
        ),
        flow_story(
            "chain",
            "a flow cuts, reads and writes steps over another one's results",
            "INSERT INTO rowlock_stream_state",
            host.chained,
            heir=plays.finish_in_turn,
            when=of(*CUTS, *READS, "write steps", owner="Flow sums"),
            shards=4,
        ),
        flow_story(
            "snapshot",
            "a snapshot is requested, read and released",
            "SELECT anon_1",
            host.balances,
            play_it=plays.lose_a_reader,
            before=plays.all_done_before,
            afterwards=plays.read_again,
        ),
        flow_story(
            "snapshot-write",
            "steps are cut and written around a snapshot that is read",
            "INSERT INTO rowlock_stream_state",
            host.balances,
            play_it=plays.lose_a_writer,
            before=plays.all_done_before,
            when=of("cut a step", "write steps"),
            afterwards=plays.read_again,
        ),
    )
}
