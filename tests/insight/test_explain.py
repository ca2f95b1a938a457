"""`Insight.explain`: why a row waits, told from the rows alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from rowlock.insight import AppError, Explanation, Verdict
from rowlock.insight.questions import place_of
from rowlock.insight.shown import shown
from rowlock.testing import TemporaryDatabase

from .shop import (
    SCENES,
    BackupPipeline,
    FleetPipeline,
    Invoice,
    Scene,
    Volume,
    VolumePipeline,
    at,
    furnish,
    insight_of,
)

pytestmark = pytest.mark.either_database(but=["test_each_verdict_has_its_text"])

GOLDEN = Path(__file__).parent / "golden"


def compared(name: str, text: str, *, renew: bool) -> None:
    """Compare a text with the file of that name."""
    file = GOLDEN / name
    if renew:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == file.read_text(encoding="utf-8")


async def explained(database: TemporaryDatabase, name: str) -> Explanation:
    """Return what is said of volume 17 in a scene."""
    await furnish(database, SCENES[name])
    pipelines = [VolumePipeline(), FleetPipeline()]
    # Only where it has something to say: each pipeline of the model has a block.
    insight = insight_of(database, pipelines=pipelines)
    if name in {"held_by_pipeline", "kept"}:
        insight = insight_of(database, pipelines=[*pipelines, BackupPipeline()])
    return await insight.explain("Volume", "17")


@pytest.mark.parametrize("name", SCENES)
async def test_each_verdict_has_its_text(
    database_with_clock: TemporaryDatabase, name: str, pytestconfig: pytest.Config
) -> None:
    """A person would be told something else than the page of verdicts says, or other words on
    another database; or a page that has only the JSON would say something else than a terminal.
    """
    answer = await explained(database_with_clock, name)
    renew = bool(pytestconfig.getoption("--renew-pages"))
    compared(f"{name}.txt", answer.text(), renew=renew)
    document = json.dumps(answer.to_dict(), ensure_ascii=False, indent=2)
    compared(f"{name}.json", document, renew=renew)
    assert answer.pipelines[0].verdict.value == next(
        verdict for verdict in Verdict if name.startswith(verdict.value)
    )
    again = json.loads(document)
    assert Explanation.from_dict(again | {"came_later": 1}) == answer
    assert Explanation.from_dict(again).text(80) == answer.text(80)


async def test_a_model_without_a_pipeline(database: TemporaryDatabase) -> None:
    """A person would look for a reason in the row."""
    answer = await insight_of(database).explain(Invoice, 4)
    assert answer.text() == (
        "Invoice 4\nNO PIPELINE of this app works on Invoice\n\n"
        "why   Without a pipeline nothing claims its rows.\n"
        "do    write one, or name the app that has it:"
        " rowlock explain Invoice 4 --app MODULE:ATTRIBUTE\n"
        "more  docs/reference/verdicts.md#no-pipeline"
    )
    assert answer.needs_person


@pytest.mark.parametrize("model", [Volume, "Volume", "volumes"])
async def test_a_model_is_named_in_any_way(
    database: TemporaryDatabase, model: type[Volume] | str
) -> None:
    """A person would have to know how the class is called."""
    await furnish(database, Scene({"status": "active"}))
    assert (await insight_of(database).explain(model, 17)).row_id == "17"


@pytest.mark.parametrize(
    ("model", "key", "told"),
    [
        ("Volum", 17, "Volume may be meant"),
        ("nonsense", 17, "there are Fleet, Volume"),
        ("Volume", "x", "x is no key of Volume: its id is a whole number"),
        ("Volume", "1" * 30, "is no key of Volume"),
        ("Vol\x1b[2Jume", 17, r"Vol\\x1b\[2Jume"),
    ],
)
async def test_what_is_named_wrongly(
    database: TemporaryDatabase, model: str, key: str | int, told: str
) -> None:
    """A mistake in a word would look like a database that fails, or write to the terminal."""
    with pytest.raises(AppError, match=told):
        await insight_of(database).explain(model, key)


async def test_a_key_that_no_column_holds(database: TemporaryDatabase) -> None:
    """A number that is too large for its column would fail on one of the databases."""
    await furnish(database, Scene())
    answer = await insight_of(database).explain(Volume, 2**40)
    assert answer.pipelines[0].verdict is Verdict.NO_ROW


async def test_two_pipelines_have_a_block_each(database: TemporaryDatabase) -> None:
    """What keeps a row from one pipeline would be taken for what keeps it from the other."""
    await furnish(database, Scene({"status": "active"}))
    insight = insight_of(database, pipelines=[VolumePipeline(), BackupPipeline()])
    answer = await insight.explain("Volume", 17)
    assert [one.pipeline for one in answer.pipelines] == ["VolumePipeline", "BackupPipeline"]
    assert answer.pipelines[0].verdict is Verdict.NOT_READY
    assert answer.text().count("\n\nVolume 17 · BackupPipeline") == 1


async def test_rows_of_one_time_stand_in_the_order_of_their_keys(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Of rows that were submitted together each would be told that it is the last."""
    await furnish(database_with_clock, Scene({"due_at": at(-1)}, before=4, due_before=-1))
    insight = insight_of(database_with_clock)
    found = [await insight.explain(Volume, key) for key in (17, 1000, 1003)]
    assert [_place(one) for one in found] == [0, 1, 4]


async def test_no_more_rows_are_counted_than_a_place_can_say(
    database_with_clock: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million rows of one time would all be read for the place of one of them; or the last that
    is counted would be told another place than it has.
    """
    monkeypatch.setattr("rowlock.insight.questions.PLACES_MAX", 3)
    new = tuple({"id": key, "status": "growing"} for key in range(1, 4))
    processed = {"id": 4, "status": "growing", "last_processed_at": at(-600)}
    scene = Scene({"due_at": at(-1)}, fleets=(*new, processed), before=6, due_before=-1)
    await furnish(database_with_clock, scene)
    insight = insight_of(database_with_clock, pipelines=[VolumePipeline(), FleetPipeline()])

    async def place(pipeline: str, key: int) -> object:
        asked = insight._asked(insight.pipelines[pipeline], key)
        async with database_with_clock.engine.connect() as connection:
            return await connection.scalar(place_of(asked.question))

    volumes = [await place("VolumePipeline", key) for key in (17, 1000, 1001, 1002, 1005)]
    assert volumes == [0, 1, 2, 3, 4]
    assert [await place("FleetPipeline", key) for key in range(1, 5)] == [0, 1, 2, 3]


def _place(answer: Explanation) -> int:
    [one] = answer.pipelines
    counted = re.search(r"(\d+|no) rows? (?:is|are) before it", one.why)
    assert counted is not None, one
    return 0 if counted[1] == "no" else int(counted[1])


def test_a_value_is_cut_before_it_is_read() -> None:
    """A megabyte in a column would be escaped character by character, for a line of 200."""

    class Counted(str):
        """Tells how much of it is looked at."""

        __slots__ = ()

        def __str__(self) -> Self:
            return self

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("all of it is looked at")

    assert shown(Counted("x" * 10**6)) == "x" * 199 + "…"
