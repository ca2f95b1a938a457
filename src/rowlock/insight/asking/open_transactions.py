"""What is said of transactions that are open, and keep a row or a whole table from claims."""

from __future__ import annotations

from rowlock.insight.shown import ago, lasting, shown, sql_text
from rowlock.insight.verdicts import Facts, TableLock, TouchingTransaction, VerdictText


def touched(facts: Facts) -> VerdictText:
    """Return what is said of a row that an open transaction keeps."""
    if facts.table_lock is not None:
        return table_locked(facts.table_lock)
    by = facts.touched
    assert isinstance(by, TouchingTransaction)
    headline = f"TOUCHED by an open transaction: {transaction_text(by)}"
    why = "An open transaction has locked or written it; claims pass such rows over."
    if by.pid is None:
        why = (
            "A transaction that was prepared, and not committed, has locked or written it, and"
            " outlives its connection and the server; claims pass such rows over."
        )
    return VerdictText(headline, why, ended(by, "end it"))


def transaction_text(by: TouchingTransaction) -> str:
    """Return which transaction it is."""
    if by.pid is None:
        return f"{sql_text(by.gid)}, prepared by {shown(by.owner)} {ago(by.seconds)}"
    does = "" if by.state is None else f", {shown(by.state)} {lasting(by.seconds)}"
    return f"pid {by.pid}{does}"


def ended(by: TouchingTransaction, before: str) -> str:
    """Return how it is ended; `before` stands before the command, if it is of a connection."""
    if by.pid is None:
        return (
            "whoever prepared it commits it; if that is gone, COMMIT PREPARED or:"
            f" ROLLBACK PREPARED {sql_text(by.gid)}"
        )
    return f"{before}: SELECT pg_terminate_backend({by.pid})"


def holds_rows(by: TouchingTransaction, of: str) -> str:
    """Return what is said of a transaction that was prepared and left behind, with rows `of` a
    model.
    """
    does = f"has rows of {shown(of)}, which claims pass over"
    return f"{transaction_text(by)}, {does}: {ended(by, 'end it')}"


def table_locked(lock: TableLock) -> VerdictText:
    """Return what is said of a table that somebody keeps everybody out of."""
    by, table = lock.by, shown(lock.table)
    has = f"has locked {table}" if lock.is_granted else f"waits to lock {table}"
    behind = "" if lock.is_granted else ", and whoever comes behind it waits, too"
    return VerdictText(
        f"TOUCHED by an open transaction: {transaction_text(by)}, which {has}",
        f"Nothing of {table} can be read or claimed as long as it {has}{behind}.",
        ended(by, "wait; if it hangs, end it"),
    )
