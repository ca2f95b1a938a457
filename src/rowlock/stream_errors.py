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
        self.source = source
        self.recorded = recorded
        self.assigned = assigned


class ShardsMissingError(RowlockError):
    """The shards of a flow do not have each bucket once, as after a backup was restored in part.
    How far the flow is cannot be known then, so nothing of it is read, done or deleted.

    Attributes:
        missing: the buckets that no shard has, each range as its first one and that behind it.
        twice: the buckets that two shards have.
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
        self.flow = flow
        self.missing = missing
        self.twice = twice


class ReplayMismatchError(RowlockError):
    """The steps of a shard, done again, came out otherwise than the first time; it is parked, and
    nothing is written.

    Attributes:
        shard: its buckets.
        step: the first one that came out otherwise.
        sources: of the flow, whose rows are the input.
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
    """A key does not belong to the shard that works on it.

    Attributes:
        shard: the buckets of the shard.
    """

    def __init__(self, *, key: str, shard: str) -> None:
        super().__init__(f"the key {key!r} does not belong to the shard of buckets {shard}")
        self.key = key
        self.shard = shard


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
        self.flow = flow
        self.description = description
        self.stored = stored


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
    """Rows of a step are asked for that were deleted.

    Attributes:
        source: the stream or output.
        step: the first that is asked for.
        first: the first that is kept.
    """

    def __init__(self, *, source: str, step: int, first: int) -> None:
        super().__init__(
            f"{source}: what is asked for begins at {step}, and is kept from {first} on"
        )
        self.source = source
        self.step = step
        self.first = first


class StillNeeded(Refusal):
    """Rows were to be deleted that still have a reader.

    Attributes:
        source: the stream or output.
        step: the first that is needed.
        by: who needs it.
    """

    def __init__(self, *, source: str, step: int, by: str) -> None:
        super().__init__(f"{source}: {by} needs what begins at {step}")
        self.source = source
        self.step = step
        self.by = by


class RowsChanged(Refusal):
    """Rows of a fold were changed, deleted or added by the host while a step was computed from
    them; nothing is written, and the step is done again from what is there now.
    """

    def __init__(self, *, table: str, rows: int) -> None:
        super().__init__(f"{table}: {rows} rows of a step were changed after they were read")
        self.table = table
        self.rows = rows


class CursorMoved(Refusal):
    """A step was worked on by another consumer of the same name; roll back.

    Attributes:
        output: whose step it is.
    """

    def __init__(self, *, output: str, consumer: str, step: int) -> None:
        super().__init__(f"{output}: the consumer {consumer!r} has worked on step {step} elsewhere")
        self.output = output
        self.consumer = consumer
        self.step = step


class ProducerConflictError(RowlockError):
    """A producer used a number again for other events; nothing was written.

    Attributes:
        stream: the log.
    """

    def __init__(self, *, stream: str, producer: str, seq: int) -> None:
        super().__init__(
            f"{stream}: the producer {producer!r} has sent other events as number {seq}: a number"
            " stands for the same events, however often they are sent"
        )
        self.stream = stream
        self.producer = producer
        self.seq = seq


class VersionNotFoundError(RowlockError):
    """A snapshot is kept no longer: it was read for longer than snapshots are kept, or another one
    has replaced it. What was read of it so far is of one step.

    Attributes:
        version: the step at whose start the snapshot was.
    """

    def __init__(self, *, flow: str, version: int) -> None:
        super().__init__(f"the snapshot of {flow!r} at step {version} is kept no longer")
        self.flow = flow
        self.version = version


class StoreClosedError(RowlockError):
    """States are read behind the block that had them kept.

    Attributes:
        version: the step at whose start the snapshot was.
    """

    def __init__(self, *, flow: str, version: int) -> None:
        super().__init__(
            f"the snapshot of {flow!r} at step {version} is closed: its block has ended"
        )
        self.flow = flow
        self.version = version


class NotProcessedYet(Refusal):
    """A flow has not done what was waited for, or asked about.

    Attributes:
        what: a row, an append or a step.
        reason: why it is not done: what the flow waits for.
    """

    def __init__(self, *, flow: str, what: str, reason: str) -> None:
        super().__init__(f"the flow {flow!r} has not done {what} yet: {reason}")
        self.flow = flow
        self.what = what
        self.reason = reason
