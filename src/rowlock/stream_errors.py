"""The errors of streams, which belong to the tree of ``errors.py``."""

from __future__ import annotations

from rowlock.errors import Refusal, RowlockError


class PositionsWentBackError(RowlockError):
    """A stream assigns positions again that were read already, so its next rows would never be
    seen: a part of a backup was restored, or a sequence was restarted.

    Attributes:
        recorded: the position up to which rows are known.
        assigned: the position above which the next rows will be.
    """

    def __init__(self, *, source: str, recorded: int, assigned: int) -> None:
        super().__init__(
            f"the stream {source!r} was known up to position {recorded}, and will assign positions"
            f" above {assigned} next"
        )
        self.source, self.recorded, self.assigned = source, recorded, assigned


class ShardsMissingError(RowlockError):
    """The shards of a flow do not have each bucket once, as after a backup was restored in part.
    How far the flow is cannot be known then, so nothing of it is read, done or deleted.

    Attributes:
        missing: the buckets that no shard has, each range as its first one and that behind it.
        twice: those that two shards have.
    """

    def __init__(
        self, *, flow: str, missing: tuple[tuple[int, int], ...], twice: tuple[tuple[int, int], ...]
    ) -> None:
        parts = [
            f"{who} the buckets {lo} to {hi - 1}"
            for who, ranges in (("no shard has", missing), ("two shards have", twice))
            for lo, hi in ranges
        ]
        super().__init__(
            f"shards of the flow {flow!r} are missing, or are there twice: {'; '.join(parts)};"
            " restore all tables of streams from a backup of one moment"
        )
        self.flow, self.missing, self.twice = flow, missing, twice


class ReplayMismatchError(RowlockError):
    """The steps of a shard, done again, came out otherwise than the first time, from `step` on; it
    is parked, and nothing is written. `sources` are those of the flow, whose rows are the input.
    """

    def __init__(
        self, *, flow: str, shard: str, step: int, sources: tuple[str, ...], differs: str
    ) -> None:
        super().__init__(
            f"step {step} of the flow {flow!r}, shard {shard}, over {', '.join(sources)}:"
            f" its replay came out otherwise: {differs}"
        )
        self.flow, self.shard, self.step, self.sources = flow, shard, step, sources


class ShardStateError(RowlockError):
    """Something happened to a shard that cannot happen in its state; nothing was changed."""


class WrongShardError(RowlockError):
    """A key does not belong to the shard, of these buckets, that works on it."""

    def __init__(self, *, key: str, shard: str) -> None:
        super().__init__(f"the key {key!r} does not belong to the shard of buckets {shard}")
        self.key, self.shard = key, shard


class FlowChangedError(RowlockError):
    """A flow was declared otherwise than it is stored: with other sources, stages, states or
    outputs. What is stored would be read wrongly, so this replica does not work on it; replicas
    with the old declaration go on.

    Attributes:
        description: what it is declared as, a part in each line.
        stored: what it is stored as, in the same form; None if that is not known.
    """

    def __init__(self, *, flow: str, description: str, stored: str | None = None) -> None:
        super().__init__(f"the flow {flow!r} is {_changes(description, stored)}")
        self.flow, self.description, self.stored = flow, description, stored


def _changes(description: str, stored: str | None) -> str:
    now, before = description.splitlines(), (stored or "").splitlines()
    if stored is None:
        parts = "; ".join(now)
        return f"stored with other sources, stages, states or outputs than these: {parts}"
    gone = "; ".join(line for line in before if line not in now) or "nothing else"
    new = "; ".join(line for line in now if line not in before) or "nothing else"
    if gone == new:
        return f"stored with its parts in another order: {'; '.join(before)}"
    return f"declared otherwise than it is stored: declared {new}; stored {gone}"


class StepExpired(Refusal):
    """Rows of a stream or output, the `source`, are asked for from `step` on, and are kept from
    `first` on.
    """

    def __init__(self, *, source: str, step: int, first: int) -> None:
        super().__init__(
            f"{source}: what is asked for begins at {step}, and is kept from {first} on"
        )
        self.source, self.step, self.first = source, step, first


class StillNeeded(Refusal):
    """Rows of a stream or output, its `source`, were to be deleted that still have a reader: `by`
    needs what begins at `step`.
    """

    def __init__(self, *, source: str, step: int, by: str) -> None:
        super().__init__(f"{source}: {by} needs what begins at {step}")
        self.source, self.step, self.by = source, step, by


class RowsChanged(Refusal):
    """Rows of a fold were changed, deleted or added by the host while a step was computed from
    them; nothing is written, and the step is done again from what is there now.
    """

    def __init__(self, *, table: str, rows: int) -> None:
        super().__init__(f"{table}: {rows} rows of a step were changed after they were read")
        self.table, self.rows = table, rows


class CursorMoved(Refusal):
    """A step of an output was worked on by another consumer of the same name; roll back."""

    def __init__(self, *, output: str, consumer: str, step: int) -> None:
        super().__init__(f"{output}: the consumer {consumer!r} has worked on step {step} elsewhere")
        self.output, self.consumer, self.step = output, consumer, step


class ProducerConflictError(RowlockError):
    """A producer of a log, the `stream`, used a number again for other events; nothing was
    written.
    """

    def __init__(self, *, stream: str, producer: str, seq: int) -> None:
        super().__init__(
            f"{stream}: the producer {producer!r} has sent other events as number {seq}: a number"
            " stands for the same events, however often they are sent"
        )
        self.stream, self.producer, self.seq = stream, producer, seq


class VersionNotFoundError(RowlockError):
    """A snapshot is kept no longer: it was read for longer than snapshots are kept, or another one
    has replaced it. What was read so far is of one step, at whose start it was: `version`.
    """

    def __init__(self, *, flow: str, version: int) -> None:
        super().__init__(f"the snapshot of {flow!r} at step {version} is kept no longer")
        self.flow, self.version = flow, version


class StoreClosedError(RowlockError):
    """States are read behind the block that had them kept, of the snapshot at the start of the step
    `version`.
    """

    def __init__(self, *, flow: str, version: int) -> None:
        super().__init__(
            f"the snapshot of {flow!r} at step {version} is closed: its block has ended"
        )
        self.flow, self.version = flow, version


class NotProcessedYet(Refusal):
    """A flow has not done what was waited for, or asked about: a row, an append or a step. The
    `reason` is what the flow waits for.
    """

    def __init__(self, *, flow: str, what: str, reason: str) -> None:
        super().__init__(f"the flow {flow!r} has not done {what} yet: {reason}")
        self.flow, self.what, self.reason = flow, what, reason
