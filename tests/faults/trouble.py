"""A PostgreSQL server that refuses, with any code, to write one status; a trigger raises it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from rowlock.testing import TemporaryDatabase

TROUBLE = """
CREATE TABLE trouble (code text, status text);
CREATE FUNCTION in_trouble() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE found text := (SELECT code FROM trouble WHERE status = NEW.status LIMIT 1);
BEGIN
    IF found IS NOT NULL THEN RAISE EXCEPTION 'in trouble' USING ERRCODE = found; END IF;
    RETURN NEW;
END $$;
"""


async def begin_trouble(database: TemporaryDatabase, code: str, *, table: str, status: str) -> None:
    async with database.engine.begin() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.execute(TROUBLE)
        await connection.execute(
            text("INSERT INTO trouble VALUES (:code, :status)"), {"code": code, "status": status}
        )
        await connection.exec_driver_sql(
            f"CREATE TRIGGER in_trouble BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION"
            " in_trouble()"
        )


async def end_trouble(database: TemporaryDatabase) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(text("DELETE FROM trouble"))
