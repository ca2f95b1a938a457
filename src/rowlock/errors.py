"""One tree of errors: faults end in ``Error``, refusals (which a healthy system meets) do not.

Each class has a slug, which is its name, and under that slug a paragraph in
``docs/reference/errors.md`` that says what happened and what to change. Each carries its data as
attributes, so that a host maps it to an answer without parsing a message.
"""

from __future__ import annotations

import re
from asyncio import CancelledError
from math import ceil
from typing import Any, ClassVar, Final

from rowlock.redaction import text_of

ERROR_TEXT_CHARS_MAX = 1024
"""Longest error text that is stored in a row, in characters."""

HOST_ERRORS: Final = (Exception, CancelledError)
"""What may come out of code of the host and harms its row, or its listener, alone. The rest of
``BaseException`` ends the process, as in every program.
"""

_MODULES = frozenset({__name__, "rowlock.stream_errors", "rowlock.insight.steering"})
"""Where the classes of the tree are."""


class RowlockError(Exception):
    """Everything that rowlock itself raises.

    Attributes:
        slug: the paragraph of ``docs/reference/errors.md`` about this class.
    """

    slug: ClassVar[str] = "rowlock-error"

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        # A subclass of the host's is explained by that which it extends.
        if cls.__module__ in _MODULES:
            cls.slug = re.sub(r"\B(?=[A-Z])", "-", cls.__name__).lower()

    @property
    def link(self) -> str:
        """Where this error is explained; ``python -m rowlock errors SLUG`` prints it."""
        return f"docs/reference/errors.md#{self.slug}"

    @property
    def message(self) -> str:
        """What happened, without the link."""
        return super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would make it again from its message alone, which most classes do not take. Those
        # that are an OSError as well get their `args` in their `__init__` only.
        return type(self).__new__, (type(self), *self.args), {**vars(self), "args": self.args}

    def __str__(self) -> str:
        return f"{self.message} (see {self.link}, or python -m rowlock errors {self.slug})"


class ConfigurationError(RowlockError):
    """Something was set up wrongly; nothing was started."""


class ModelError(ConfigurationError):
    """The host's model cannot be leased: a column is missing, has the wrong type, or the key is
    not a single column.
    """

    def __init__(self, message: str, *, model: str, column: str | None = None) -> None:
        super().__init__(message)
        self.model, self.column = model, column


class SettingsError(ConfigurationError):
    """A setting is out of bounds or contradicts another one."""

    def __init__(
        self, message: str, *, pipeline: str | None = None, settings: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.pipeline, self.settings = pipeline, settings


class LockCycleError(ConfigurationError):
    """Pipelines lock each other's rows in a circle, so that each may wait for the next for ever:
    those of `cycle`, in order; the last one locks rows of the first.
    """

    def __init__(self, message: str, *, cycle: tuple[str, ...]) -> None:
        super().__init__(message)
        self.cycle = cycle


class GraphError(ConfigurationError):
    """A graph was built wrongly; nothing was started. Raised in the line that is wrong."""


class UnsupportedDialectError(ConfigurationError):
    """The database is neither PostgreSQL nor SQLite, or its engine is set up in a way that no
    lease can survive.
    """

    def __init__(self, message: str, *, dialect_name: str) -> None:
        super().__init__(message)
        self.dialect_name = dialect_name


class AppError(ConfigurationError):
    """The host's pipelines cannot be found, or have no such model, pipeline or row."""


class PipelineError(RowlockError):
    """A pipeline or its manager was used in a way that its life does not allow."""


class OutcomeError(PipelineError):
    """`process` returned something that cannot be written to this row; the row is retried like
    after any failure.
    """

    def __init__(self, message: str, *, column: str | None = None) -> None:
        super().__init__(message)
        self.column = column


class HostCodeError(PipelineError):
    """`also`, `options` or another function of the host raised; the text says what, and
    ``__cause__`` is the error itself.
    """


class ProcessCancelledError(PipelineError):
    """`process` let a ``CancelledError`` escape that rowlock had not asked for; the row is
    retried like after any failure.
    """


class GraphDeadlockError(RowlockError):
    """A graph cannot go on: no call is in flight, no timer is set, and it has not finished.

    Attributes:
        text: the graph with the flags of each edge, a line per node.
        cycle: the names of the nodes that wait for each other, in order; the last one waits for
            the first. Empty if a node waits for something that no other node owes it.
    """

    def __init__(self, message: str, *, text: str, cycle: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.text, self.cycle = text, cycle


class Refusal(RowlockError):
    """An expected refusal: the operation cannot be performed right now. Retry later."""


class LeaseLost(Refusal):
    """The holder may no longer trust its lease; whatever it computed is not written."""

    def __init__(self, *, pipeline: str, row_id: object) -> None:
        super().__init__(f"{pipeline} no longer holds the lease of row {row_id}")
        self.pipeline, self.row_id = pipeline, row_id


class RelatedLockUnavailable(Refusal):
    """Not every related row could be locked, so none was."""

    def __init__(self, *, model: str, wanted: int, available: int) -> None:
        super().__init__(f"{available} of {wanted} related rows of {model} are free")
        self.model, self.wanted, self.available = model, wanted, available


class LockWaitTimeout(Refusal):
    """A lock was not free within the time that the caller was willing to wait.

    Attributes:
        holder: the owner of the lease, where that is known.
        seconds_left: the time left of that lease, unless it is renewed, where that is known.
    """

    def __init__(
        self,
        *,
        namespace: str,
        keys: tuple[object, ...],
        timeout_s: float,
        holder: str | None = None,
        seconds_left: float | None = None,
    ) -> None:
        held = "" if holder is None else f"; held by {holder}"
        what = f"{len(keys)} key(s) of {namespace!r} were" if keys else f"{namespace!r} was"
        super().__init__(f"{what} not free within {timeout_s:g} s{held}")
        self.namespace, self.keys, self.timeout_s = namespace, keys, timeout_s
        self.holder, self.seconds_left = holder, seconds_left


class TransactionTimeout(Refusal):
    """The database did not finish a transaction in time; whether it was committed is unknown until
    it is asked.

    Attributes:
        was_aborted: it was ended from another thread, since the event loop had stalled in the
            middle of it.
        was_rolled_back: and nothing of it was committed, for certain.
    """

    def __init__(
        self,
        *,
        purpose: str,
        timeout_s: float,
        was_aborted: bool = False,
        was_rolled_back: bool = False,
    ) -> None:
        why = " while the event loop was stalled" if was_aborted else f" within {timeout_s:g} s"
        super().__init__(f"the transaction to {purpose} did not end{why}")
        self.purpose, self.timeout_s = purpose, timeout_s
        self.was_aborted, self.was_rolled_back = was_aborted, was_rolled_back


class AdmissionRejected(Refusal):
    """As many rows are active as the ceiling, `max_active`, allows; nothing was written. Over HTTP:
    429 with ``Retry-After``, of `retry_after` whole seconds.
    """

    def __init__(self, *, active: int, ceiling: int, retry_after_s: float) -> None:
        self.active, self.ceiling, self.retry_after_s = active, ceiling, retry_after_s
        self.retry_after = max(1, ceil(retry_after_s))
        super().__init__(
            f"{active} are active and {ceiling} is the ceiling; try again in {self.retry_after} s"
        )


class Draining(Refusal):
    """This replica is being shut down and takes nothing new; another one does. Come back in
    `retry_after_s`. Over HTTP: 503 with ``Retry-After``, of `retry_after` whole seconds.
    """

    def __init__(self, *, pipeline: str, retry_after_s: float) -> None:
        self.pipeline, self.retry_after_s = pipeline, retry_after_s
        self.retry_after = max(1, ceil(retry_after_s))
        super().__init__(f"{pipeline} is being shut down; try again in {self.retry_after} s")


class NoWorkersAvailable(Refusal):
    """None of the `asked` workers accepted."""

    def __init__(self, *, asked: int) -> None:
        super().__init__(f"none of {asked} workers accepted" if asked else "there is no worker")
        self.asked = asked


class WorkerBusy(Refusal):
    """A worker has as much as it takes; others may have room."""

    def __init__(self, worker: str) -> None:
        super().__init__(f"worker {worker} has no room")
        self.worker = worker


class WorkerGone(Refusal):
    """A worker cannot be reached, or died with the attempt."""

    def __init__(self, worker: str, why: str = "") -> None:
        super().__init__(f"worker {worker} is gone{': ' if why else ''}{why}")
        self.worker, self.why = worker, why


class GraphTimeLimit(Refusal, TimeoutError):
    """The run of a graph did not finish in time, and was ended. Calls of the `abandoned` operators
    ignored the end and still run in their threads.
    """

    def __init__(self, *, graph: str, time_limit_s: float, abandoned: tuple[str, ...] = ()) -> None:
        left = f"; calls still run of {', '.join(abandoned)}" if abandoned else ""
        super().__init__(f"the graph {graph!r} did not finish within {time_limit_s:g} s{left}")
        self.graph, self.time_limit_s, self.abandoned = graph, time_limit_s, abandoned


class GraphInterrupted(Refusal):
    """The run of a graph, or of one value in it, was ended because the caller's ``keep_going``
    returned False.
    """

    def __init__(self, graph: str) -> None:
        super().__init__(f"the graph {graph!r} was interrupted: its keep_going returned False")
        self.graph = graph


class GraphClosed(Refusal):
    """A standing graph was closed, or is being closed, and takes no value; or the block of a stream
    was left, which gives none any more.
    """

    def __init__(self, graph: str) -> None:
        super().__init__(f"the graph {graph!r} is closed")
        self.graph = graph


class InternalError(RowlockError):
    """A promise of rowlock's own code was broken: please report it."""


def describe(error: BaseException, *, chars_max: int = ERROR_TEXT_CHARS_MAX) -> str:
    """Return ``"Type: text"`` in at most `chars_max` characters, without values of a statement,
    and also if ``__str__`` raises.
    """
    text, name = text_of(error), type(error).__name__
    return shorten(f"{name}: {text}" if text else name, chars_max=chars_max)


def shorten(text: str, *, chars_max: int = ERROR_TEXT_CHARS_MAX) -> str:
    """Return `text` in at most `chars_max` characters, without NUL (PostgreSQL refuses it) and
    lone surrogates.
    """
    clean = text.replace("\x00", "�").encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= chars_max else clean[: chars_max - 1] + "…"
