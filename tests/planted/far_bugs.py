"""Guards of questions to a database that is far away, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

FAR = "tests/insight/test_far_away.py"
STATUS = "tests/insight/test_status.py"
COMMAND = "tests/cli/test_no_database.py"
SIDE = "insight/asking/concurrent_questions.py"

FAR_BUGS = (
    Bug(
        "answers stand in the order in which they came",
        SIDE,
        "asked_concurrently",
        "[answers[number] for number in range(len(asks))]",
        "list(answers.values())",
        (f"{FAR}::test_answers_stand_in_the_order_of_their_questions",),
    ),
    Bug(
        "all pipelines are asked at once",
        SIDE,
        "asked_concurrently",
        "in asks[:QUESTIONS_AT_ONCE_MAX]:",
        "in asks:",
        (f"{FAR}::test_answers_stand_in_the_order_of_their_questions",),
    ),
    Bug(
        "questions go on beside one that has failed",
        SIDE,
        "asked_concurrently",
        "for task in tasks:\n            task.cancel()\n"
        "        await asyncio.gather(*tasks, return_exceptions=True)",
        "pass",
        (f"{FAR}::test_the_error_of_one_is_the_error_of_all",),
    ),
    Bug(
        "a status asks on after its time",
        "insight/insight.py",
        "Insight.status",
        "ends is None or monotonic() < ends",
        "True",
        (f"{FAR}::test_what_there_was_no_time_for_is_said",),
    ),
    Bug(
        "a pipeline that was not asked seems to have nothing",
        "insight/counting/running.py",
        "status_of",
        "unknown=(NOT_ASKED,)",
        "unknown=()",
        (f"{FAR}::test_what_there_was_no_time_for_is_said",),
    ),
    Bug(
        "each count goes to the database by itself",
        "insight/counting/asking.py",
        "waiting_asked",
        "asked.failure is not None",
        "True",
        (f"{FAR}::test_a_status_is_one_statement_for_each_pipeline",),
    ),
    Bug(
        "one count that is refused is an error of the whole status",
        "insight/questions.py",
        "whole_else_apart",
        "not is_of_a_statement(error)",
        "True",
        (f"{STATUS}::test_a_count_that_takes_too_long_is_an_answer",),
    ),
    Bug(
        "the command for a slow database has no answer but an error",
        "cli/status.py",
        "status_in_time",
        "within=STATUS_WITHIN",
        "",
        (f"{COMMAND}::test_a_database_that_is_slow_is_asked_as_long_as_there_is_time",),
    ),
)
