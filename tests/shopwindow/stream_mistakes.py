"""Usual mistakes in the declaration of a flow, and in its handlers, each as a function that makes
it: what the tables of ``docs/reference/mistakes.md`` about streams list.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from rowlock.streams import Checkpoint, DynamicShards, StepContext, StreamFlow, Streams, TableSource

from .mistaken_hosts import Balance, Bare, Base, Counted, Keyless, Payment, Short


class Mistake(NamedTuple):
    """What is written, what is said of it, and what to write instead."""

    what: str
    make: Callable[..., object]
    text: str
    instead: str


def flow(*sources: Any, **settings: Any) -> StreamFlow[Any]:
    """Declare a flow of payments, or of other sources."""
    declared: StreamFlow[Any] = Streams(Base).flow("balances", *sources or (Payment,), **settings)
    return declared


def add(step: StepContext, account: str, cents: int | None, payments: list[Any]) -> int:
    return 0


async def adds_later(step: Any, account: str, cents: Any, payments: list[Any]) -> int:
    return 0


def adds_alone(account: str, payments: list[Any]) -> int:
    return 0


def two_handlers() -> None:
    declared = flow()
    declared.by_key(state=int)(add)
    declared.by_key(state=int)(add)


def list_of_flows() -> None:
    streams = Streams(Base)
    streams.pipelines([streams.flow("balances", Payment)])  # type: ignore[arg-type]


def late_output() -> None:
    declared = flow()
    declared.by_key(state=int)(add)
    _ = declared.program
    declared.output("seen", int)


def flow_over_rows() -> None:
    streams = Streams(Base)
    rows = streams.flow("balances", Payment).output("rows", into=Balance)
    streams.flow("sums", rows)


AT_DECLARATION = (
    Mistake(
        "a model without `EventColumns`",
        lambda: flow(Bare),
        "Bare is no stream: add EventColumns to it",
        "the mixin, or `TableSource` for a table that is there",
    ),
    Mistake(
        "`__stream_key__` that is no attribute",
        lambda: flow(Keyless),
        "must name a column attribute",
        "the name of the column of the keys",
    ),
    Mistake(
        "positions that the client gives (`default=`)",
        lambda: TableSource(Counted, position=Counted.id, key=Counted.account),
        "the client gives its values",
        "a column that the database assigns, ascending",
    ),
    Mistake(
        'a text for the key of a log (`key="account"`)',
        lambda: Streams(Base).log("clicks", Balance, key="account"),  # type: ignore[arg-type]
        "such as attrgetter('account')",
        "a function of the event",
    ),
    Mistake("`shards=12`", lambda: flow(shards=12), "a power of two", "1, 2, 4, 8, 16, ..."),
    Mistake("`shards=True`", lambda: flow(shards=True), "is an int, such as 8", "`shards=8`"),
    Mistake(
        "`shards=DynamicShards` without brackets",
        lambda: flow(shards=DynamicShards),
        "or DynamicShards(), not",
        "`shards=DynamicShards()`",
    ),
    Mistake(
        "`checkpoint=50`",
        lambda: flow(checkpoint=50),
        "write Checkpoint(steps=50)",
        "`Checkpoint(steps=50)`",
    ),
    Mistake(
        "a duration in a checkpoint (`seconds=timedelta(...)`)",
        lambda: Checkpoint(steps=50, seconds=timedelta(seconds=10)),  # type: ignore[arg-type]
        "are a number, such as 10",
        "`Checkpoint(steps=50, seconds=10)`",
    ),
    Mistake(
        "a text for the steps of a checkpoint",
        lambda: Checkpoint(steps="50"),  # type: ignore[arg-type]
        "are an int, such as 50",
        "`Checkpoint(steps=50)`",
    ),
    Mistake(
        "a number for what a log keeps (`keep=7`)",
        lambda: Streams(Base).log("clicks", int, key=str, keep=7),  # type: ignore[arg-type]
        "such as timedelta(days=7)",
        "`keep=timedelta(days=7)`",
    ),
    Mistake(
        "a number for the version of the code (`version=3`)",
        lambda: flow(version=3),
        "is a text of up to 255 characters",
        '`version="3"`',
    ),
    Mistake(
        "a NUL or a lone surrogate in a name",
        lambda: Streams(Base).flow("a\ud800", Payment),
        "lone surrogates",
        "a text that each database stores",
    ),
    Mistake(
        "a line break in a name",
        lambda: Streams(Base).flow("a\nb", Payment),
        "control characters",
        "a text of one line",
    ),
    Mistake(
        "a misspelt keyword (`step_row_max=100`)",
        lambda: flow(step_row_max=100),
        "step_rows_max is meant",
        "the name that is meant",
    ),
    Mistake(
        "no handler",
        lambda: flow().program,
        "has no handler: a flow needs one",
        "`@flow.by_key(...)`, `batch` or `fold`",
    ),
    Mistake(
        "two handlers of a flow",
        two_handlers,
        "has a handler",
        "one handler for all, a second flow, or an exchange",
    ),
    Mistake(
        "an `async def` handler",
        lambda: flow().by_key(state=int)(adds_later),
        "a handler is a plain function",
        "`def`; deliver from an output",
    ),
    Mistake(
        "a handler with other arguments",
        lambda: flow().by_key(state=int)(adds_alone),  # type: ignore[arg-type]
        "must take (step, key, state, events)",
        "these, by position",
    ),
    Mistake(
        "`@flow.by_key` without brackets",
        lambda: flow().by_key(add),  # type: ignore[call-overload]
        "write @flow.by_key(",
        "`@flow.by_key()`",
    ),
    Mistake(
        "a fold with `Checkpoint(steps=50)`",
        lambda: flow(checkpoint=Checkpoint(steps=50)).fold(Balance),
        "leave out checkpoint=",
        "no `checkpoint=`, or a state",
    ),
    Mistake(
        "a fold into rows whose key is shorter (`String(5)`)",
        lambda: flow().fold(Short),
        "takes 5 characters, and keys of the stream 'payments' have up to 50",
        "a key as long as that of the source",
    ),
    Mistake(
        "`pipelines([flow])`",
        list_of_flows,
        "each as an argument of its own",
        "`pipelines(flow)`, or `pipelines()` for all",
    ),
    Mistake(
        "an output that is declared late",
        late_output,
        "declare its outputs before",
        "outputs beside the flow, before `pipelines()`",
    ),
    Mistake(
        "a flow over an output `into` a table",
        flow_over_rows,
        "read their table as a stream",
        "the table as a source",
    ),
)


def forgets(step: StepContext, account: str, cents: Any, payments: list[Any]) -> None:
    """Return nothing."""


def has_no_state(step: StepContext, account: str, cents: Any, payments: list[Any]) -> int:
    return 5


def is_another(step: StepContext, account: str, cents: Any, payments: list[Any]) -> str:
    return "5"


def emits_elsewhere(step: StepContext, account: str, cents: Any, payments: list[Any]) -> int:
    """Emit to what is no output of the flow."""
    step.emit(flow().output("seen", int), 5)
    return 0


def sets_a_naive_timer(step: StepContext, account: str, cents: Any, payments: list[Any]) -> int:
    step.set_timer(step.now.replace(tzinfo=None) + timedelta(hours=1))
    return 0


IN_HANDLER = (
    Mistake(
        "a forgotten `return` of the state", forgets, "return the state, or FORGET", "the state"
    ),
    Mistake(
        "a state that is returned without `state=`",
        has_no_state,
        "without state=... there is nowhere to keep it",
        "`by_key(state=int)`",
    ),
    Mistake(
        "a state of another type",
        is_another,
        "a value of type str is no int",
        "the type of `state=`",
    ),
    Mistake(
        "`emit` to an output of another flow",
        emits_elsewhere,
        "is no output of the flow 'balances'",
        "an output of the same flow",
    ),
    Mistake(
        "a timer without a time zone",
        sets_a_naive_timer,
        "write step.now + timedelta",
        "`step.now + timedelta(...)`",
    ),
)


async def give_a_position(streams: Streams, session: Any) -> None:
    """Give a row the position that it is to have."""
    session.add(Payment(position=7, account="a", cents=1))
    await session.flush()


async def append_one(streams: Streams, session: Any) -> None:
    await streams.logs["words"].append(session, "word")


async def append_without_number(streams: Streams, session: Any) -> None:
    await streams.logs["words"].append(session, ["word"], producer="phone")


async def append_others(streams: Streams, session: Any) -> None:
    for word in ("one", "two"):
        await streams.logs["words"].append(session, [word], producer="phone", seq=1)


async def wait_too_early(streams: Streams, session: Any) -> None:
    await streams.flows["balances"].wait_for(session, Payment(account="a", cents=1), timeout=0)


async def wait_for_a_key(streams: Streams, session: Any) -> None:
    await streams.flows["balances"].wait_for(session, "a", timeout=0)


async def pause_nothing(streams: Streams, session: Any) -> None:
    await streams.flows["balances"].pause(session)


AT_CALL = (
    Mistake(
        "a row with a position of its own (`Payment(position=7)`)",
        give_a_position,
        "the database assigns positions",
        "the row without it",
    ),
    Mistake(
        "`append` of one event", append_one, "append takes a list", "`append(session, [event])`"
    ),
    Mistake(
        "a producer without a number",
        append_without_number,
        "pass both `producer` and `seq`",
        "both, or none",
    ),
    Mistake(
        "a number for other events",
        append_others,
        "has sent other events as number 1",
        "the next number",
    ),
    Mistake(
        "`wait_for` a row before its commit",
        wait_too_early,
        "it was not written yet",
        "the call behind the commit",
    ),
    Mistake(
        "`wait_for` a key",
        wait_for_a_key,
        "is nothing of these: pass a row that was added",
        "the row, or what `append` returned",
    ),
    Mistake(
        "a command before the first start",
        pause_nothing,
        "has no row yet",
        "a manager with `streams.pipelines()` first",
    ),
)
