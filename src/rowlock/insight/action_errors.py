"""Why an action of a person was refused; these errors belong to the tree of ``errors.py``."""

from __future__ import annotations

from rowlock.errors import Refusal
from rowlock.insight.shown import shown


class RowNotFound(Refusal):
    """There is no row with this key; nothing was written."""

    def __init__(self, *, model: str, row_id: object) -> None:
        super().__init__(f"{model} has no row {row_id}")
        self.model = model
        self.row_id = row_id


class LeaseChanged(Refusal):
    """The lease of a row is not the one that was shown, so it is another holder's; nothing was
    written.

    Attributes:
        owner: who holds or keeps the row by now; None if nobody does.
    """

    def __init__(self, *, model: str, row_id: object, owner: str | None = None) -> None:
        now = "nobody has it" if owner is None else f"{owner} has it"
        super().__init__(f"the lease of {model} {row_id} is not the one that was shown: {now} now")
        self.model = model
        self.row_id = row_id
        self.owner = owner


class LeaseAlive(Refusal):
    """The lease of a row has not ended, and was not to be broken by force; nothing was written.

    Attributes:
        owner: who holds the row.
        token: of its lease.
        seconds_left: of the lease, unless it is renewed.
    """

    def __init__(
        self, *, model: str, row_id: object, owner: str, token: str, seconds_left: float
    ) -> None:
        super().__init__(
            f"{owner} holds {model} {row_id} by the lease {token}, for {seconds_left:.0f} s more"
            " unless that is renewed; if it is gone, use force"
        )
        self.model = model
        self.row_id = row_id
        self.owner = owner
        self.token = token
        self.seconds_left = seconds_left


class AlreadyPaused(Refusal):
    """A pipeline is paused already, and that pause was not to be replaced; nothing was written.

    Attributes:
        by: who paused it.
    """

    def __init__(self, *, pipeline: str, by: str, reason: str) -> None:
        super().__init__(
            f"{by} has paused {pipeline} already: {shown(reason)}; resume it first, or replace that"
            " pause (--replace)"
        )
        self.pipeline = pipeline
        self.by = by


class NotPausable(Refusal):
    """Pipelines of this host cannot be paused: half a pause is none."""

    def __init__(self, message: str, *, pipeline: str) -> None:
        super().__init__(message)
        self.pipeline = pipeline
