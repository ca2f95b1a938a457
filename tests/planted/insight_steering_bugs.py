"""Guards of pauses and of what a person does by the windows, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

GATE = "tests/insight/test_pause_gate.py"
TABLES = "insight/tables.py"

INSIGHT_STEERING_BUGS = (
    Bug(
        "a pause ends by the clock of the process",
        TABLES,
        "InsightTables.is_paused",
        "paused.until > database_now()",
        'paused.until > __import__("datetime").datetime.now(__import__("datetime").UTC)',
        (f"{GATE}::test_until_ends_it_by_the_databases_clock",),
    ),
    Bug(
        "a pause has no end",
        TABLES,
        "InsightTables.is_paused",
        "or_(paused.until.is_(None), paused.until > database_now()),",
        "",
        (f"{GATE}::test_until_ends_it_by_the_databases_clock",),
    ),
    Bug(
        "a pause without an end is none",
        TABLES,
        "InsightTables.is_paused",
        "paused.until.is_(None), ",
        "",
        (f"{GATE}::test_what_is_paused_claims_nothing",),
    ),
    Bug(
        "a pause stops all pipelines",
        TABLES,
        "InsightTables.is_paused",
        "paused.pipeline == literal(pipeline, String),",
        "",
        (f"{GATE}::test_another_pipeline_goes_on",),
    ),
)
