"""The examples of streams check themselves. Here what they count is spoiled, and they must notice,
on both databases; and replicas of two others die at any moment.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, update
from sqlalchemy.sql.base import Executable

from rowlock.testing import TemporaryDatabase, crash_everywhere

from .example_modules import example, part

Spoils = dict[str, Callable[[Any], Executable]]
"""What may be wrong with the rows of a model, and how they come to be so."""

INVOICES: Spoils = {
    "a line is missing": lambda line: delete(line).where(line.id == 1),
    "a line is there twice": lambda line: insert(line).values(
        account="account 0", month=part("metering.dates").FIRST_DAY, units=0
    ),
    "a unit is missing": lambda line: update(line).where(line.id == 1).values(units=line.units - 1),
    "a unit is there twice": lambda line: (
        update(line).where(line.id == 1).values(units=line.units + 1)
    ),
}

BALANCES: Spoils = {
    "a payment is missing": lambda part: (
        delete(part.Payment)
        .where(part.Payment.number == "a/0")
        .execution_options(rowlock_changes_events=True)
    ),
    "a balance is missing": lambda part: delete(part.Balance).where(part.Balance.account == "a"),
    "a balance is too much": lambda part: insert(part.Balance).values(account="b", cents=0),
    "a cent is missing": lambda part: update(part.Balance).values(cents=part.Balance.cents - 1),
}


async def run(database: TemporaryDatabase, *statements: Executable) -> None:
    async with database.session_factory.begin() as session:
        for statement in statements:
            await session.execute(statement)


@pytest.mark.parametrize("wrong", [None, "a client has read a wrong balance", *BALANCES])
async def test_balances(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    """Example 13 would end well though a balance is not the sum of its payments."""
    balances, tables = example(13), part("paying.tables")
    monkeypatch.setattr(balances, "CLIENTS", 1)
    await database.create_tables(tables.Payment.metadata)
    amounts = [balances.amount(0, number) for number in range(balances.PAYMENTS)]
    payments = [{"number": f"a/{n}", "account": "a", "cents": c} for n, c in enumerate(amounts)]
    await run(
        database,
        insert(tables.Payment).values(payments),
        insert(tables.Balance).values(account="a", cents=sum(amounts)),
    )
    if wrong in BALANCES:
        await run(database, BALANCES[wrong](tables))
    seen = balances.Counts(wrong=int(wrong is not None and wrong not in BALANCES))
    assert await balances.recount(database.session_factory, seen) is (wrong is None)


@pytest.mark.parametrize("wrong", [None, *INVOICES])
async def test_invoices(database: TemporaryDatabase, wrong: str | None) -> None:
    """Example 14 would end well though a unit is on no line, or on two."""
    line = part("metering.streams").InvoiceLine
    await database.create_tables(line.metadata)
    rows = [
        {"account": account, "month": month, "units": units}
        for (account, month), units in part("metering.readings").measured().items()
    ]
    await run(database, insert(line).values(rows))
    if wrong is not None:
        await run(database, INVOICES[wrong](line))
    assert await example(14).recount(database.session_factory) is (wrong is None)


SUMS, LETTERS = [0] * 20, ["account-0"]
FOUND = {f"account-{number}": 600 for number in range(1, 11)} | {"account-0": -6000}


@pytest.mark.parametrize(
    ("wrong", "sums", "found", "letters"),
    [
        (None, SUMS, FOUND, LETTERS),
        ("the sum of a snapshot", [*SUMS, 1], FOUND, LETTERS),
        ("the number of snapshots", SUMS[1:], FOUND, LETTERS),
        ("a balance", SUMS, FOUND | {"account-1": 601}, LETTERS),
        ("an account that is missing", SUMS, dict(list(FOUND.items())[1:]), LETTERS),
        ("an account that is too much", SUMS, FOUND | {"account-11": 0}, LETTERS),
        ("a letter that is missing", SUMS, FOUND, []),
        ("a letter that came twice", SUMS, FOUND, LETTERS * 2),
    ],
)
async def test_ledger(
    database: TemporaryDatabase,
    monkeypatch: pytest.MonkeyPatch,
    wrong: str | None,
    sums: list[int],
    found: dict[str, int],
    letters: list[str],
) -> None:
    """Example 15 would end well though a snapshot, a balance or a letter is wrong."""
    ledger, tables = example(15), part("transferring.tables")
    monkeypatch.setattr(ledger, "ACCOUNTS", len(FOUND))
    await database.create_tables(tables.Base.metadata)
    payees = [f"account-{number}" for number in range(1, 11)]
    payments = [{"payer": "account-0", "payee": payee, "cents": 600} for payee in payees]
    await run(database, insert(tables.Transfer).values(payments))
    expected = await ledger.balances_by_sql(database.session_factory)
    counts = ledger.Counts(transfers=len(payments), sums=sums)
    is_right = ledger.recount(counts, found=found, expected=expected, letters=letters)
    assert is_right is (wrong is None)


@pytest.mark.parametrize("change", [{}, {"the": -1}, {"the": 1}, {"xyzzy": 1}])
def test_words(change: dict[str, int]) -> None:
    """Example 16 would end well though a line is not counted, or counted twice."""
    found = Counter(part("counting.texts").counted())
    found.update(change)
    assert example(16).recount(found) is (not change)


async def test_one_disk_for_each_volume(database_with_clock: TemporaryDatabase) -> None:
    """Example 5 would be copied, and with it a pipeline that creates a disk too many."""
    module = example(5)
    await database_with_clock.create_tables(module.Base.metadata)
    await crash_everywhere(
        database_with_clock,
        row=module.Volume,
        world=module.Cloud,
        build=module.VolumePipeline,
        effects=lambda cloud: cloud.disks,
    )


async def test_one_file_for_each_volume(
    database_with_clock: TemporaryDatabase, tmp_path: Path
) -> None:
    """Example 4 shows one crash; it would not survive the others."""
    module, numbers = example(4), itertools.count()

    def cloud() -> Any:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return module.Cloud(folder)

    async def nothing(sessions: Any, volume_id: uuid.UUID) -> None:
        return

    await database_with_clock.create_tables(module.Base.metadata)
    await crash_everywhere(
        database_with_clock,
        row=module.Volume,
        world=cloud,
        build=lambda world: module.VolumePipeline(
            database_with_clock.session_factory, world, meanwhile=nothing
        ),
        effects=lambda world: sorted(disk.name for disk in world.folder.glob("*.disk")),
    )
