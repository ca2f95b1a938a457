"""``docs/reference/json.md``: each document that a command prints, made of the schemas that ship;
and the documents that tests keep meet them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from rowlock.cli.answering import failure_document
from rowlock.errors import AppError
from rowlock.insight.actions import ActionDone
from rowlock.insight.findings import Findings
from rowlock.insight.rehearsal import ColumnChange, Rehearsal, RowRehearsal
from rowlock.insight.schemas import DOCUMENTS, schema_of
from rowlock.insight.steering import Act
from rowlock.testing import TemporaryDatabase

from ..insight.shop import BackupPipeline, Scene, VolumePipeline, at, furnish, insight_of
from ..insight.test_status import TABLES, replica
from .pages import DOCS

PAGE: Final = DOCS / "reference" / "json.md"
GOLDEN: Final = Path(__file__).parents[1] / "insight" / "golden"
CHANGE: Final = ColumnChange("status", "'a'", "'b'")
BEGIN: Final = """\
# JSON

With `--json` each command prints one document. Times are ISO 8601 in UTC and end in `Z`, durations
are numbers of seconds under names that end in `_s`, ids are text. Within a version keys are only
added: a reader ignores what it does not know. The [JSON Schemas](https://json-schema.org) come with
the package: `rowlock.insight.schemas.schema_of("rowlock.status/1")`.
"""


def page() -> str:
    return "\n".join([BEGIN, *(section(name) for name in DOCUMENTS)])


def section(name: str) -> str:
    schema = schema_of(name)
    head = ["| key | type | meaning |", "|---|---|---|"]
    return "\n".join(
        [f"## `{schema['title']}`\n", f"{schema['description']}\n", *head, *rows(schema), ""]
    )


def rows(schema: dict[str, Any], before: str = "") -> Iterator[str]:
    """Yield a line for each key, those of objects within it behind it."""
    for name, one in schema["properties"].items():
        yield f"| `{before}{name}` | {kind(one)} | {one['description']} |"
        inner = one.get("items", one)
        if "properties" in inner:
            yield from rows(inner, f"{before}{name}{'[]' if 'items' in one else ''}.")


def kind(one: dict[str, Any]) -> str:
    if "const" in one:
        return f"`{one['const']}`"
    types = one["type"]
    return " or ".join(types) if isinstance(types, list) else str(types)


def test_the_page_is_made_of_the_schemas(pytestconfig: pytest.Config) -> None:
    """A script would be written by a page that has other keys than the document."""
    if pytestconfig.getoption("--renew-pages"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


def check(document: dict[str, Any]) -> None:
    """Check a document by the schema that it names, and that the schema knows all its keys."""
    schema = schema_of(document["schema"])
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    assert unknown(document, schema) == []


def unknown(value: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    if isinstance(value, list):
        return [found for one in value for found in unknown(one, schema.get("items", {}), where)]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    keys = schema["properties"]
    return [f"{where}.{name}" for name in value if name not in keys] + [
        found
        for name, one in value.items()
        if name in keys
        for found in unknown(one, keys[name], f"{where}.{name}")
    ]


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.json")))
def test_kept_documents_meet_their_schema(name: str) -> None:
    """A script that reads explanations would break at a new release."""
    check(json.loads((GOLDEN / name).read_text(encoding="utf-8")))


async def test_each_command_prints_what_its_schema_says(
    sqlite_database_with_clock: TemporaryDatabase,
) -> None:
    """A script would be written by a schema that the command does not keep."""
    await furnish(sqlite_database_with_clock, Scene({"due_at": at(-120)}))
    assert TABLES.replicas is not None
    async with sqlite_database_with_clock.engine.begin() as connection:
        await connection.execute(TABLES.replicas.insert().values(replica("3fa2c1d0", "web-7")))
    pipelines = [VolumePipeline(), BackupPipeline()]
    for tables in (TABLES, None):
        insight = insight_of(sqlite_database_with_clock, pipelines=pipelines, tables=tables)
        answers = [
            await insight.status(),
            await insight.replicas(),
            await insight.explain("Volume", 17),
            await insight.explain("Volume", 18),
            await insight.explain("Invoice", 4),
            await insight.rows("VolumePipeline", "due"),
            await insight.timeline("Volume", 17),
            Findings(await insight.check(), len(pipelines)),
            await insight.explain_claim("VolumePipeline"),
            await insight.explain_pipeline("VolumePipeline"),
            Rehearsal(
                "VolumePipeline",
                "Volume",
                (RowRehearsal("17", "Apply", None, (CHANGE,), ("a hint",), 0.1),),
            ),
            ActionDone(Act("park", "alice", "no cloud", "Volume", "17"), "parked"),
        ]
        for answer in answers:
            check(json.loads(json.dumps(answer.to_dict())))
    check(failure_document(AppError("no app")))


def test_there_is_no_schema_of_what_there_is_not() -> None:
    """A typing error would look like a file that is missing, an old version like today's."""
    for name in ("rowlock.nothing/1", "rowlock.check/1"):
        with pytest.raises(ValueError, match=f"no document is named '{name}'"):
            schema_of(name)
