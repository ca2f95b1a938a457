"""The guards against silence: what is told, and what an outage must not do."""

from __future__ import annotations

from bug import Bug

AWAY = "tests/walks/test_provider_away.py"
DEATHS = "tests/rows/test_lock_tokens_of_the_dead.py"
MISTAKES = "tests/shopwindow/test_mistakes_page.py"
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
    Bug(
        "a forgotten return counts as done",
        "pipelines/settling/decisions.py",
        "decide",
        "allows_none=context.allows_none",
        "allows_none=True",
        (f"{MISTAKES}::test_it_is_said_by_the_attempt",),
    ),
    Bug(
        "changes of the row are lost without a word",
        "pipelines/settling/decisions.py",
        "decide",
        "if context.checks_rows",
        "if False",
        (f"{MISTAKES}::test_it_is_said_by_the_attempt",),
    ),
    Bug(
        "misspelt names are ignored",
        "pipelines/pipeline.py",
        "Pipeline.__init__",
        "check_names(self, Pipeline, kept=_RESERVED)",
        "pass",
        (f"{MISTAKES}::test_it_is_said_at_construction",),
    ),
    Bug(
        "a forgotten super().__init__() is not noticed",
        "pipelines/pipeline.py",
        "Pipeline.__init_subclass__",
        'if "__init__" in vars(cls)',
        "if False",
        (f"{MISTAKES}::test_it_is_said_at_construction",),
    ),
    Bug(
        "`and` in ready drops a condition",
        "pipelines/host_code/python_booleans.py",
        "_is_jump",
        "any(jump in operation for jump in _JUMPS)",
        "False",
        (f"{MISTAKES}::test_it_is_said_at_construction",),
    ),
    Bug(
        "a request for a parked row is written and forgotten",
        "services/request.py",
        "write_request",
        "if is_intent(leased.model, written)",
        "if False",
        (f"{MISTAKES}::test_a_request_for_a_parked_row_puts_it_back_if_it_is_of_intent",),
    ),
    Bug(
        "any request puts a parked row back",
        "hints/intents.py",
        "is_intent",
        "own is None",
        "True",
        (f"{MISTAKES}::test_a_request_for_a_parked_row_puts_it_back_if_it_is_of_intent",),
    ),
    Bug(
        "a handler is not checked against its engine",
        "dispatch/pipeline.py",
        "_check_parts",
        "if check_handler is not None",
        "if False",
        (f"{MISTAKES}::test_it_is_said_at_construction",),
    ),
    Bug(
        "forgotten indexes of dispatch are found by the first submission",
        "dispatch/pipeline.py",
        "_check_columns",
        "one.unique and",
        "True or",
        (f"{MISTAKES}::test_it_is_said_at_construction",),
    ),
    Bug(
        "a hint behind the commit is not told",
        "hints/hinter.py",
        "hint_after_commit",
        "innermost is None and",
        "False and",
        (f"{MISTAKES}::test_a_hint_behind_the_commit_is_told",),
    ),
)
