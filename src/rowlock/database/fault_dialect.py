"""What is asked of each database about an error: what its code says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from rowlock.dialects import DialectPart


class ErrorVerdict(NamedTuple):
    """What a database says by the code of an error.

    Attributes:
        passes: whether the same statement may succeed later unchanged.
        concerns_every_row: of one that passes: whether it is about the server, the connection or
            other transactions alone.
        is_conflict: whether the transaction was rolled back for another one's sake.
        is_after_an_error: whether the statement was refused since an earlier one of the transaction
            had failed.
        is_of_the_size: whether a transaction that does less may succeed.
        is_of_the_schema: whether the statement is refused whichever rows it is about.
        is_of_the_values: whether it is refused for a value in it that the database cannot keep.
        is_of_the_server: whether it is about the server that the connection leads to, or about the
            connection, so that a new connection may be answered otherwise.
    """

    passes: bool
    concerns_every_row: bool
    is_conflict: bool = False
    is_after_an_error: bool = False
    is_of_the_size: bool = False
    is_of_the_schema: bool = False
    is_of_the_values: bool = False
    is_of_the_server: bool = False


class FaultDialect(ABC):
    """One database's error codes. Each is asked about each error, so it must know its own."""

    @abstractmethod
    def fault_of(self, raised: BaseException | None) -> ErrorVerdict | None:
        """Return what the code of a driver's exception says; None if it is another database's, or
        has no code.
        """


FAULTS: DialectPart[FaultDialect] = DialectPart("faults", FaultDialect)
