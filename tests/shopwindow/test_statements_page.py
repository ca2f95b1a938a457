"""``docs/reference/statements.md`` prints the statements that the databases receive.

The one idea: a statement is not compiled for the page but heard on its way to a real database,
while the page's own pipeline claims two rows and writes their outcomes. Bound values that are the
same for all rows stand in place of their parameters.

    python -m pytest tests/shopwindow/test_statements_page.py --renew-pages
"""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import event

from rowlock.insight import replica_mark
from rowlock.testing import TemporaryDatabase, stepping

from .pages import DOCS, name_of, program_of

PAGE = DOCS / "reference" / "statements.md"
RENEW = "python -m pytest tests/shopwindow/test_statements_page.py --renew-pages"
WIDTH = 96
DRIVERS = ("aiosqlite", "asyncpg")
"""Whose parameters the page shows."""
_BLOCK = re.compile(r"<!-- (?P<name>\w+ \w+) -->\n```sql\n(?P<text>.*?)```\n", re.DOTALL)
_VARIES = re.compile(r"[0-9a-f]{32}|\d{4}-\d\d-\d\d .*|\[\[.*")
"""Tokens and times, as they are bound on SQLite, and the JSON that brings rows of them."""
_PARAMETER = re.compile(r"\$(?P<number>\d+)(?:::(?:TIMESTAMP WITH TIME ZONE|[A-Z]+)(?:\[\])?)?|\?")
_LITERAL = re.compile(r"'[^']*'")
_BREAK = re.compile(
    r"'[^']*'|[(),]|"
    r"\b(?:FOR NO KEY UPDATE|ORDER BY|RETURNING|SELECT|UPDATE|WHERE|LIMIT|SET|AND)\b|"
    r"(?<!DISTINCT )\bFROM\b"
)


class Heard(list[str]):
    def hear(self, *heard: Any) -> None:
        """Take down a statement, unless it is one of the connection's set-up."""
        _connection, _cursor, sql, bound, _context, many = heard
        if not sql.startswith("PRAGMA"):
            self.append(formatted(filled(sql, bound if many else [bound])) + ";\n")


@contextmanager
def heard_by(database: TemporaryDatabase) -> Iterator[Heard]:
    """Hear what is sent to the database in the block."""
    heard, engine = Heard(), database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", heard.hear)
    try:
        yield heard
    finally:
        event.remove(engine, "before_cursor_execute", heard.hear)


def filled(sql: str, rows: Sequence[Sequence[Any]]) -> str:
    """Return a statement with the values that all rows share, but for tokens, marks and times."""
    places = iter(range(len(rows[0])))

    def shown(parameter: re.Match[str]) -> str:
        place = next(places) if parameter["number"] is None else int(parameter["number"]) - 1
        values = [row[place] for row in rows]
        value = values[0]
        if value is None:
            return "NULL"
        varies = value == replica_mark() or _VARIES.fullmatch(str(value))
        is_plain = isinstance(value, int | float | str) and not varies
        return repr(value) if is_plain and values.count(value) == len(rows) else parameter[0]

    return _PARAMETER.sub(shown, sql)


def formatted(sql: str) -> str:
    """Return a statement in lines of at most `WIDTH`: each clause, condition and column its own."""
    text = _LITERAL.sub(lambda literal: literal[0].replace(" ", "\0"), " ".join(sql.split()))
    lines, depth, clause, start, indent = list[str](), 0, ("", 0), 0, 0
    for found in _BREAK.finditer(text):
        word = found[0]
        depth += (word == "(") - (word == ")")
        is_inside = depth > clause[1] or (word == "AND" and clause != ("WHERE", depth))
        if word[0] in "()'" or (word in (",", "AND") and is_inside):
            continue
        end = found.end() if word == "," else found.start()
        lines += wrapped(text[start:end], indent)
        start, indent = end, depth * 2 + {",": 4 * (depth == clause[1]), "AND": 2}.get(word, 0)
        clause = clause if word in (",", "AND") else (word, depth)
    return "\n".join([*lines, *wrapped(text[start:], indent)]).replace("\0", " ")


def wrapped(part: str, indent: int) -> list[str]:
    """Return a part of a statement in lines, the later ones further in."""
    return textwrap.wrap(
        part.strip(),
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


async def statements_of(database: TemporaryDatabase) -> dict[str, str]:
    """Return the statements of a claim and of two outcomes, by their names on the page."""
    page: Any = ModuleType("statements_page")
    program = program_of(PAGE.read_text(encoding="utf-8"))
    exec(compile(program, name_of(PAGE), "exec", dont_inherit=True), vars(page))
    await database.create_tables(page.Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all([page.Volume(id=1), page.Volume(id=2)])
    async with stepping(database.session_factory, page.VolumePipeline()) as steps:
        if database.dialect_name == "postgresql":
            # As a manager does before its first fetch.
            await steps.run.fetcher._check_times()
        with heard_by(database) as claim:
            items = await steps.fetch_once()
        steps.run.context.queue.discard(items)
        workers = zip(steps.run.workers, items, strict=False)
        with heard_by(database) as outcome:
            await asyncio.gather(*(worker.work(item) for worker, item in workers))
            await steps.run.settler.wait_until_idle()
    name, reading = database.dialect_name, 1
    return {f"{name} claim": "\n".join(claim), f"{name} outcome": "\n".join(outcome[reading:])}


async def test_statements_are_as_printed(
    database: TemporaryDatabase, request: pytest.FixtureRequest
) -> None:
    """A reader would study a statement that no database receives."""
    if database.engine.dialect.driver not in DRIVERS:
        pytest.skip("the page has the parameters of other drivers")
    text, compiled = PAGE.read_text(encoding="utf-8"), await statements_of(database)
    printed = {block["name"]: block["text"] for block in _BLOCK.finditer(text)}
    assert set(compiled) <= set(printed), f"{name_of(PAGE)} has no place for them"
    if request.config.getoption("renew_pages"):
        for name, sql in compiled.items():
            before = f"<!-- {name} -->\n```sql\n"
            text = text.replace(before + printed[name], before + sql)
        PAGE.write_text(text, encoding="utf-8")
        return
    for name, sql in compiled.items():
        assert printed[name].splitlines() == sql.splitlines(), f"out of date; renew it by {RENEW}"
