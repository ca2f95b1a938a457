"""Law 3: `rows/` never executes, `pipelines/` holds no SQL, and a function that runs SQL tells
whose transaction it is.

It tells by its first parameter: `session` or `connection` joins the caller's and never ends it;
`session_factory` or `engine` opens its own and commits it, as does what is handed no more than an
address. An object that was made with an engine opens with it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from .reading import (
    Function,
    Source,
    decorators,
    dotted,
    functions,
    imports,
    last_name,
    own_nodes,
    package,
    planted,
)

EXECUTING = frozenset(
    {
        *("execute", "executemany", "exec_driver_sql", "executescript"),
        *("scalar", "scalars", "stream", "stream_scalars", "fetch", "fetchrow", "fetchval"),
        *("add", "add_all", "merge", "flush", "refresh", "run_sync"),
    }
)
ENDING = frozenset({"commit", "rollback", "close", "begin", "invalidate"})
JOINING = ("session", "connection")
OPENING = ("session_factory", "engine")
ADDRESSES = ("url", "dsn", "server")
HANDED_IN = frozenset({"op"})
"""Alembic's operations: the host's migration calls us with its own."""
SPOKEN_IN_PIPELINES = frozenset(
    {
        *(
            "AsyncConnection",
            "AsyncEngine",
            "AsyncSession",
            "async_scoped_session",
            "async_sessionmaker",
        ),  # handed through to leases/
        *("ColumnElement", "ColumnExpressionArgument"),  # what ready() returns
        *("ExecutableOption", "LoaderOption", "ORMOption"),  # what options() returns
        # the keys of an outcome's values
        *("Column", "InstrumentedAttribute", "QueryableAttribute"),
        # hints wait for the outermost commit of the host's session
        *("Session", "SessionTransaction", "event"),
        *("DBAPIError", "SQLAlchemyError"),  # what a failing transaction raises
    }
)


def is_database_call(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether `node` calls a method of `names` on something that is, by its name, a session, a
    connection or a cursor.
    """
    if not (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
    ):
        return False
    receiver = last_name(node.func.value).strip("_").lower()
    return receiver.endswith(
        ("session", "connection", "conn", "cursor", "db", "engine", "transaction")
    )


def executing_rows(tree: list[Source]) -> list[str]:
    """Find code in `rows/` that talks to a database, or that could wait for one."""
    found = []
    for source in (source for source in tree if source.room == "rows"):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith | ast.AsyncFunctionDef):
                found.append(source.finding(node, "rows/ builds SQL and waits for nothing"))
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "execute"
            ):
                if last_name(node.func.value) not in HANDED_IN:
                    found.append(source.finding(node, "rows/ builds SQL and never runs it"))
            elif is_database_call(node, EXECUTING | ENDING):
                found.append(source.finding(node, "rows/ builds SQL and never runs it"))
    return found


def sql_in_pipelines(tree: list[Source]) -> list[str]:
    """Find SQL in `pipelines/`: what is imported to build it, and calls that run it."""
    found = []
    for source in (source for source in tree if source.room == "pipelines"):
        for target, line in imports(source):
            if (
                target.split(".")[0] == "sqlalchemy"
                and target.rpartition(".")[2] not in SPOKEN_IN_PIPELINES
            ):
                found.append(
                    source.finding(line, f"pipelines/ holds no SQL, so it has no use for {target}")
                )
        calls = (
            node for node in ast.walk(source.tree) if is_database_call(node, EXECUTING | ENDING)
        )
        found.extend(
            source.finding(node, "pipelines/ holds no SQL; leases/ runs it") for node in calls
        )
    return found


def parameters(function: Function, *, is_method: bool) -> list[str]:
    """Return the names of the parameters in order, without `self`."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    return names[is_method:] + [argument.arg for argument in arguments.kwonlyargs]


def unclear_transactions(tree: list[Source]) -> list[str]:
    """Find functions that run SQL, or are handed the means to, and do not tell by the first
    parameter whose transaction it is.
    """
    found: list[str] = []
    for source in tree:
        for function, is_method in functions(source):
            if function.name != "__init__" and not {"overload", "fixture"} & decorators(function):
                found.extend(
                    source.finding(function, text) for text in judged(function, is_method=is_method)
                )
    return found


def judged(function: Function, *, is_method: bool) -> Iterator[str]:
    names = parameters(function, is_method=is_method)
    told = bool(names) and names[0] in JOINING + OPENING + ADDRESSES
    handed = [
        name for name in names if name in JOINING or (name in OPENING and is_used(function, name))
    ]
    runs = any(is_database_call(node, EXECUTING) for node in own_nodes(function))
    if not told and (handed or (runs and not (is_method and opens_its_own(function)))):
        yield (
            f"{function.name} runs SQL: its first parameter must be one of"
            f" {', '.join(JOINING + OPENING)}"
        )
    for name in names:
        if name in JOINING and any(ends(node, name) for node in own_nodes(function)):
            yield (
                f"{function.name} joins the transaction of {name!r}, so it may not begin or end it"
            )


def is_used(function: Function, name: str) -> bool:
    """Whether the parameter takes part in something that waits; a factory that is only kept or
    handed on runs nothing.
    """
    waits = (
        node
        for node in own_nodes(function)
        if isinstance(node, ast.Await | ast.With | ast.AsyncWith | ast.AsyncFor)
    )
    heads = (
        item
        for node in waits
        for item in getattr(node, "items", None) or [getattr(node, "iter", node)]
    )
    return any(
        isinstance(leaf, ast.Name) and leaf.id == name for head in heads for leaf in ast.walk(head)
    )


def opens_its_own(method: Function) -> bool:
    """Whether a method enters a transaction of the engine or the factory that its object was
    made with.
    """
    entered = (
        item
        for node in own_nodes(method)
        if isinstance(node, ast.With | ast.AsyncWith)
        for item in node.items
    )
    return any(
        isinstance(leaf, ast.Attribute)
        and dotted(leaf).startswith("self.")
        and leaf.attr.strip("_") in OPENING
        for item in entered
        for leaf in ast.walk(item.context_expr)
    )


def ends(node: ast.AST, name: str) -> bool:
    """Whether `node` begins or ends the transaction of the parameter `name`."""
    return is_database_call(node, ENDING) and last_name(node.func.value) == name  # type: ignore[attr-defined]


def test_rows_never_execute() -> None:
    """Building SQL could no longer be tested, printed or reused without a database."""
    assert executing_rows(package()) == []


def test_pipelines_hold_no_sql() -> None:
    """Loops and decisions would be tied to statements, and a dialect would have to be known in
    two rooms.
    """
    assert sql_in_pipelines(package()) == []


def test_first_parameter_tells_whose_transaction() -> None:
    """A reader could not see from a call whether it commits, and would commit half of somebody's
    work.
    """
    assert unclear_transactions(package()) == []


@pytest.mark.parametrize(
    "text",
    [
        "async def f(): pass",
        "def f(session): session.execute(x)",
        "def f(anything): anything.execute(x)",
        "def f(self): self._connection.scalars(x)",
        "def f(session): session.flush()",
    ],
)
def test_planted_execution_in_rows(text: str) -> None:
    """The law above would pass whatever `rows/` does."""
    assert len(executing_rows(planted(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from sqlalchemy import select",
        "from sqlalchemy import text",
        "import sqlalchemy as sa",
        "from sqlalchemy.dialects.postgresql import insert",
        "async def f(session): await session.execute(x)",
        "async def f(self):\n async with self.factory() as session: await session.scalars(x)",
        "async def f(session): await session.commit()",
    ],
)
def test_planted_sql_in_pipelines(text: str) -> None:
    """The law above would pass whatever `pipelines/` does."""
    assert len(sql_in_pipelines(planted(text, "src/rowlock/pipelines/planted.py"))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "async def f(leased, session): await session.execute(x)",
        "async def f(leased, *, session): pass",
        "async def f(leased, engine): await g(engine)",
        (
            "async def f(leased, session_factory):\n async with session_factory() as session: await"
            " g(session)"
        ),
        "class A:\n async def f(self): await self._connection.execute(x)",
        "class A:\n async def f(self, item, session): await session.execute(x)",
        "async def f(session): await session.commit()",
        "async def f(connection):\n async with connection.begin(): pass",
    ],
)
def test_planted_unclear_transaction(text: str) -> None:
    """The law above would pass whatever the first parameter is."""
    assert len(unclear_transactions(planted(text, "src/rowlock/leases/planted.py"))) == 1
