"""Tests of the error tree: what a host can read from an error without parsing its text."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from copy import copy

import pytest

import rowlock
from rowlock.errors import (
    ERROR_TEXT_CHARS_MAX,
    AdmissionRejected,
    AppError,
    ConfigurationError,
    Draining,
    GraphClosed,
    GraphDeadlockError,
    GraphError,
    GraphInterrupted,
    GraphTimeLimit,
    HostCodeError,
    InternalError,
    LeaseLost,
    LockCycleError,
    LockWaitTimeout,
    ModelError,
    NoWorkersAvailable,
    OutcomeError,
    PipelineError,
    ProcessCancelledError,
    Refusal,
    RelatedLockUnavailable,
    RowlockError,
    SettingsError,
    TransactionTimeout,
    UnsupportedDialectError,
    WorkerBusy,
    WorkerGone,
    describe,
    shorten,
)
from rowlock.insight import AlreadyPaused, LeaseAlive, LeaseChanged, NotPausable, RowNotFound
from rowlock.stream_errors import (
    CursorMoved,
    FlowChangedError,
    NotProcessedYet,
    PositionsWentBackError,
    ProducerConflictError,
    ReplayMismatchError,
    RowsChanged,
    ShardsMissingError,
    ShardStateError,
    StepExpired,
    StillNeeded,
    StoreClosedError,
    VersionNotFoundError,
    WrongShardError,
)

MODULES = frozenset({"rowlock.errors", "rowlock.stream_errors", "rowlock.insight.steering"})
"""Where the classes of the tree are."""

CARRIED: dict[str, tuple[RowlockError, dict[str, object]]] = {
    "rowlock-error": (RowlockError("text"), {}),
    "configuration-error": (ConfigurationError("text"), {}),
    "model-error": (
        ModelError("text", model="Volume", column="due_at"),
        {"model": "Volume", "column": "due_at"},
    ),
    "settings-error": (
        SettingsError("text", pipeline="P", settings=("a",)),
        {"pipeline": "P", "settings": ("a",)},
    ),
    "unsupported-dialect-error": (
        UnsupportedDialectError("text", dialect_name="mysql"),
        {"dialect_name": "mysql"},
    ),
    "lock-cycle-error": (LockCycleError("text", cycle=("A", "B")), {"cycle": ("A", "B")}),
    "app-error": (AppError("text"), {}),
    "pipeline-error": (PipelineError("text"), {}),
    "outcome-error": (OutcomeError("text", column="status"), {"column": "status"}),
    "host-code-error": (HostCodeError("text"), {}),
    "process-cancelled-error": (ProcessCancelledError("text"), {}),
    "refusal": (Refusal("text"), {}),
    "lease-lost": (LeaseLost(pipeline="P", row_id=7), {"pipeline": "P", "row_id": 7}),
    "related-lock-unavailable": (
        RelatedLockUnavailable(model="Volume", wanted=3, available=1),
        {"model": "Volume", "wanted": 3, "available": 1},
    ),
    "lock-wait-timeout": (
        LockWaitTimeout(
            namespace="volumes", keys=(1, 2), timeout_s=1.5, holder="P", seconds_left=2.5
        ),
        {
            "namespace": "volumes",
            "keys": (1, 2),
            "timeout_s": 1.5,
            "holder": "P",
            "seconds_left": 2.5,
        },
    ),
    "transaction-timeout": (
        TransactionTimeout(purpose="claim rows", timeout_s=10.0),
        {
            "purpose": "claim rows",
            "timeout_s": 10.0,
            "was_aborted": False,
            "was_rolled_back": False,
        },
    ),
    "admission-rejected": (
        AdmissionRejected(active=7, ceiling=6, retry_after_s=1.6),
        {"active": 7, "ceiling": 6, "retry_after_s": 1.6, "retry_after": 2},
    ),
    "draining": (
        Draining(pipeline="P", retry_after_s=1.6),
        {"pipeline": "P", "retry_after_s": 1.6, "retry_after": 2},
    ),
    "no-workers-available": (NoWorkersAvailable(asked=2), {"asked": 2}),
    "worker-busy": (WorkerBusy("w"), {"worker": "w"}),
    "worker-gone": (WorkerGone("w", "killed"), {"worker": "w", "why": "killed"}),
    "graph-error": (GraphError("text"), {}),
    "graph-deadlock-error": (
        GraphDeadlockError("text", text="drawn", cycle=("zip", "batch")),
        {"text": "drawn", "cycle": ("zip", "batch")},
    ),
    "graph-time-limit": (
        GraphTimeLimit(graph="g", time_limit_s=2.5, abandoned=("parse",)),
        {"graph": "g", "time_limit_s": 2.5, "abandoned": ("parse",)},
    ),
    "graph-interrupted": (GraphInterrupted("g"), {"graph": "g"}),
    "graph-closed": (GraphClosed("g"), {"graph": "g"}),
    "shards-missing-error": (
        ShardsMissingError(flow="f", missing=((0, 1),), twice=((2, 4),)),
        {"flow": "f", "missing": ((0, 1),), "twice": ((2, 4),)},
    ),
    "replay-mismatch-error": (
        ReplayMismatchError(flow="f", shard="0 to 9", step=3, sources=("s",), differs="text"),
        {"flow": "f", "shard": "0 to 9", "step": 3, "sources": ("s",)},
    ),
    "shard-state-error": (ShardStateError("text"), {}),
    "positions-went-back-error": (
        PositionsWentBackError(source="s", recorded=5, assigned=3),
        {"source": "s", "recorded": 5, "assigned": 3},
    ),
    "producer-conflict-error": (
        ProducerConflictError(stream="s", producer="p", seq=5),
        {"stream": "s", "producer": "p", "seq": 5},
    ),
    "flow-changed-error": (
        FlowChangedError(flow="f", description="source s", stored="source t"),
        {"flow": "f", "description": "source s", "stored": "source t"},
    ),
    "not-processed-yet": (
        NotProcessedYet(flow="f", what="row 7", reason="no shard works"),
        {"flow": "f", "what": "row 7", "reason": "no shard works"},
    ),
    "step-expired": (
        StepExpired(source="s", step=1, first=4),
        {"source": "s", "step": 1, "first": 4},
    ),
    "still-needed": (
        StillNeeded(source="s", step=1, by="c"),
        {"source": "s", "step": 1, "by": "c"},
    ),
    "cursor-moved": (
        CursorMoved(output="o", consumer="c", step=2),
        {"output": "o", "consumer": "c", "step": 2},
    ),
    "rows-changed": (RowsChanged(table="t", rows=2), {"table": "t", "rows": 2}),
    "store-closed-error": (StoreClosedError(flow="f", version=4), {"flow": "f", "version": 4}),
    "version-not-found-error": (
        VersionNotFoundError(flow="f", version=4),
        {"flow": "f", "version": 4},
    ),
    "wrong-shard-error": (WrongShardError(key="k", shard="0..8"), {"key": "k", "shard": "0..8"}),
    "row-not-found": (RowNotFound(model="Volume", row_id=17), {"model": "Volume", "row_id": 17}),
    "lease-changed": (
        LeaseChanged(model="Volume", row_id=17, owner="P"),
        {"model": "Volume", "row_id": 17, "owner": "P"},
    ),
    "lease-alive": (
        LeaseAlive(model="Volume", row_id=17, owner="P", token="T", seconds_left=2.5),
        {"model": "Volume", "row_id": 17, "owner": "P", "token": "T", "seconds_left": 2.5},
    ),
    "already-paused": (
        AlreadyPaused(pipeline="P", by="alice", reason="down"),
        {"pipeline": "P", "by": "alice"},
    ),
    "not-pausable": (NotPausable("text", pipeline="P"), {"pipeline": "P"}),
    "internal-error": (InternalError("text"), {}),
}


def below(error_class: type[RowlockError]) -> Iterator[type[RowlockError]]:
    yield error_class
    for child in error_class.__subclasses__():
        if child.__module__ in MODULES:
            yield from below(child)


def test_a_wait_without_keys_names_what_was_waited_for() -> None:
    """It would say that `0 key(s)` were not free."""
    waited = LockWaitTimeout(namespace="volumes", keys=(), timeout_s=1.5)
    assert waited.message == "'volumes' was not free within 1.5 s"


def test_every_error_is_in_the_table_above() -> None:
    """A new error could do without data, and no test would ask."""
    assert {error_class.slug: error_class for error_class in below(RowlockError)} == {
        slug: type(error) for slug, (error, _) in CARRIED.items()
    }


@pytest.mark.parametrize("slug", CARRIED)
def test_an_error_says_where_it_is_explained(slug: str) -> None:
    """Whoever reads the log would have to search for the paragraph."""
    error, _ = CARRIED[slug]
    assert error.slug == slug
    assert error.link == f"docs/reference/errors.md#{slug}"
    assert error.link in str(error)
    assert str(error).endswith(f", or python -m rowlock errors {slug})")
    assert str(error).index(" (see ") > 0


def test_an_error_of_the_hosts_is_explained_by_what_it_extends() -> None:
    """Its link would lead to a paragraph that nobody has written."""

    class VolumeLost(LeaseLost):
        pass

    assert VolumeLost.slug == LeaseLost.slug == "lease-lost"


@pytest.mark.parametrize("slug", CARRIED)
def test_an_error_carries_its_data(slug: str) -> None:
    """A host would have to parse the message to map it to an answer."""
    error, data = CARRIED[slug]
    assert {name: getattr(error, name) for name in data} == data
    assert set(vars(error)) == set(data)


@pytest.mark.parametrize("copied", [copy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("slug", CARRIED)
def test_an_error_travels(slug: str, copied: Callable[[RowlockError], RowlockError]) -> None:
    """A pool of processes would end, or hang, with an error that cannot be made again."""
    error, data = CARRIED[slug]
    found = copied(error)
    assert (type(found), str(found)) == (type(error), str(error))
    assert {name: getattr(found, name) for name in data} == data
    found.add_note("in a child")
    assert copied(found).__notes__ == ["in a child"]
    assert set(vars(error)) == set(data)


@pytest.mark.parametrize(("retry_after_s", "header"), [(0.2, 1), (1.2, 2), (1.6, 2), (120.0, 120)])
def test_when_to_come_back_is_whole_seconds(retry_after_s: float, header: int) -> None:
    """`Retry-After: 0` would have the client back at once."""
    assert AdmissionRejected(active=1, ceiling=1, retry_after_s=retry_after_s).retry_after == header
    assert Draining(pipeline="P", retry_after_s=retry_after_s).retry_after == header


@pytest.mark.parametrize(
    "fault",
    [
        ModelError("", model="V"),
        SettingsError(""),
        UnsupportedDialectError("", dialect_name="x"),
        GraphError(""),
    ],
)
def test_faults_of_set_up_are_configuration_errors(fault: RowlockError) -> None:
    """A host's start-up could not catch them by one name."""
    assert isinstance(fault, ConfigurationError)
    assert not isinstance(fault, Refusal)


@pytest.mark.parametrize(
    "slug",
    [
        "lease-lost",
        "related-lock-unavailable",
        "lock-wait-timeout",
        "transaction-timeout",
        "graph-time-limit",
        "graph-interrupted",
        "graph-closed",
    ],
)
def test_refusals_are_no_faults(slug: str) -> None:
    """An alarm would ring for what a healthy system meets."""
    error, _ = CARRIED[slug]
    assert isinstance(error, Refusal)
    assert not isinstance(error, ConfigurationError | PipelineError | InternalError)


def test_a_graphs_time_limit_is_a_timeout() -> None:
    """A host that bounds a block by ``except TimeoutError`` would not catch it."""
    error = GraphTimeLimit(graph="g", time_limit_s=2, abandoned=("parse", "embed"))
    assert isinstance(error, TimeoutError)
    assert error.message == (
        "the graph 'g' did not finish within 2 s; calls still run of parse, embed"
    )


def test_errors_are_at_the_front_door() -> None:
    """A host would have to import from a room."""
    exported = {
        error_class for error_class in below(RowlockError) if hasattr(rowlock, error_class.__name__)
    }
    at_insight = {AlreadyPaused, AppError, LeaseAlive, LeaseChanged, NotPausable, RowNotFound}
    assert exported == {type(error) for error, _ in CARRIED.values()} - at_insight


# ---------------------------------------------------------------- the text that is stored


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no disk"), "ValueError: no disk"),
        (ValueError(), "ValueError"),
        (KeyboardInterrupt("stop"), "KeyboardInterrupt: stop"),
    ],
)
def test_describe(error: BaseException, text: str) -> None:
    """The row would not say why it failed, or saying it would fail itself."""
    assert describe(error) == text


def test_describe_is_bounded() -> None:
    """A failing row would store its error's megabytes again and again."""
    text = describe(ValueError("x" * 5000))
    assert len(text) == ERROR_TEXT_CHARS_MAX
    assert text.startswith("ValueError: xxx")
    assert text.endswith("x…")
    assert len(describe(ValueError("x" * 5000), chars_max=20)) == 20


@pytest.mark.parametrize(
    ("text", "shortened"),
    [
        ("plain ünï", "plain ünï"),
        ("x" * 10, "x" * 10),
        ("x" * 11, "x" * 9 + "…"),
        ("a\x00b", "a\ufffdb"),
        ("a\ud800b", "a?b"),
    ],
)
def test_shorten(text: str, shortened: str) -> None:
    """PostgreSQL would refuse the row's error text, and with it the outcome."""
    assert shorten(text, chars_max=10) == shortened
