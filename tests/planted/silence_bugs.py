"""The guards against silence: what is told, and what an outage must not do."""

from __future__ import annotations

from bug import Bug

AWAY = "tests/walks/test_provider_away.py"
DEATHS = "tests/rows/test_lock_tokens_of_the_dead.py"
UNPARK = "tests/leases/test_unpark.py"

SILENCE_BUGS = (
    Bug(
        "an outage parks what failed twenty times",
        "pipelines/settings.py",
        "PipelineSettings",
        "Field(ge=1, le=ATTEMPTS_MAX)] | None = None",
        "Field(ge=1, le=ATTEMPTS_MAX)] | None = 20",
        (f"{AWAY}::test_an_outage_of_a_day_parks_nothing",),
    ),
    Bug(
        "a row that kills its holders is tried for ever",
        "pipelines/processing/worker.py",
        "Worker._prevented",
        "item.prev_lock_expired and deaths",
        "False and deaths",
        (f"{AWAY}::test_a_row_that_kills_its_holders_is_parked_by_default",),
    ),
    Bug(
        "a death is not counted by SQLite's claim",
        "dialects/sqlite/leases.py",
        "_claimed",
        "dead=dead_token if died_here else None",
        "dead=None",
        (f"{AWAY}::test_a_row_that_kills_its_holders_is_parked_by_default",),
    ),
    Bug(
        "a random token counts deaths",
        "rows/lock_tokens.py",
        "deaths_of",
        "!= COUNTED",
        '== ""',
        (f"{DEATHS}::test_a_random_token_counts_nothing",),
    ),
    Bug(
        "deaths are counted past two digits",
        "rows/lock_tokens.py",
        "token_after",
        "min(deaths_of(dead) + 1, DEATHS_MAX)",
        "deaths_of(dead) + 1",
        (f"{DEATHS}::test_each_death_counts_one_up_to_the_limit",),
    ),
    Bug(
        "a parked row is not told",
        "pipelines/settling/recorder.py",
        "Recorder.written",
        "self._parked(item, outcome)\n            case Apply",
        "pass\n            case Apply",
        (f"{AWAY}::test_what_the_host_parks_is_told",),
    ),
    Bug(
        "unpark in bulk touches rows that are in play",
        "services/due.py",
        "_unpark_all",
        'leased.attribute("parked_at").is_not(None), condition',
        "condition",
        (f"{UNPARK}::test_rows_that_meet_the_condition_are_put_back",),
    ),
    Bug(
        "unpark in bulk takes a boolean of Python's",
        "services/due.py",
        "_unpark_all",
        "if not isinstance(condition, ColumnElement)",
        "if False",
        (f"{UNPARK}::test_what_cannot_be_meant_is_refused",),
    ),
)
