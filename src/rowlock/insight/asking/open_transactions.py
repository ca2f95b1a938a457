"""What is said of transactions that are open, and keep a row or a whole table from claims."""

from __future__ import annotations

from rowlock.insight.shown import lasting, shown
from rowlock.insight.verdicts import Facts, TableLock, TouchingTransaction, VerdictText


def touched(facts: Facts) -> VerdictText:
    """Return what is said of a row that an open transaction keeps."""
    if facts.table_lock is not None:
        return table_locked(facts.table_lock)
    by = facts.touched
    assert isinstance(by, TouchingTransaction)
    return VerdictText(
        f"TOUCHED by an open transaction: {transaction_text(by)}",
        "An open transaction has locked or written it; claims pass such rows over.",
        f"end it: SELECT pg_terminate_backend({by.pid})",
    )


def transaction_text(by: TouchingTransaction) -> str:
    """Return which transaction it is."""
    does = "" if by.state is None else f", {shown(by.state)} {lasting(by.seconds)}"
    return f"pid {by.pid}{does}"


def table_locked(lock: TableLock) -> VerdictText:
    """Return what is said of a table that somebody keeps everybody out of."""
    by, table = lock.by, shown(lock.table)
    has = f"has locked {table}" if lock.is_granted else f"waits to lock {table}"
    behind = "" if lock.is_granted else ", and whoever comes behind it waits, too"
    return VerdictText(
        f"TOUCHED by an open transaction: {transaction_text(by)}, which {has}",
        f"Nothing of {table} can be read or claimed as long as it {has}{behind}.",
        f"wait; if it hangs, end it: SELECT pg_terminate_backend({by.pid})",
    )
