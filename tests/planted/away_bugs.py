"""Guards of answers about several databases of which one is away, with the tests that must notice
when one is missing.
"""

from __future__ import annotations

from bug import Bug

AWAY = "tests/insight/test_one_away.py"
ANSWERED = f"{AWAY}::test_what_can_be_asked_is_answered"
ONCE = f"{AWAY}::test_the_one_that_hangs_is_asked_beside_the_other_and_once"
COMMANDS = "tests/cli/test_half_an_answer.py::test_what_there_is_is_printed"
DATABASES = "insight/asking/databases.py"

AWAY_BUGS = (
    Bug(
        "a database that is away takes the answers of the others with it",
        DATABASES,
        "_asked",
        "if not is_of_a_database(error):",
        "if True:",
        (ANSWERED, COMMANDS),
    ),
    Bug(
        "what an away database may know is taken for no replica",
        "insight/counting/running.py",
        "_may_run_unseen",
        "if replicas.unasked:",
        "if False:",
        (ANSWERED,),
    ),
    Bug(
        "databases are asked one behind the other",
        DATABASES,
        "asked_by_database",
        "at_once=DATABASES_AT_ONCE_MAX",
        "at_once=1",
        (ONCE,),
    ),
    Bug(
        "questions to a database that hangs have the places of the other one",
        "insight/asking/places.py",
        "QuestionPlaces.taken",
        "by_engine = self._by_loop.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())\n"
        "        places = by_engine.setdefault(engine, asyncio.Semaphore(QUESTIONS_AT_ONCE_MAX))",
        "places = self._by_loop.setdefault("
        "asyncio.get_running_loop(), asyncio.Semaphore(QUESTIONS_AT_ONCE_MAX))",
        (ONCE,),
    ),
    Bug(
        "a status of half the pipelines is well",
        "insight/counting/status.py",
        "Status.needs_person",
        "bool(self.away) or",
        "",
        (ANSWERED, COMMANDS),
    ),
    Bug(
        "a row that may be in the database that is away is said to be gone",
        "insight/insight.py",
        "Insight.explain",
        "raise_if_away(away)",
        "pass",
        (f"{AWAY}::test_a_row_that_may_be_where_nobody_could_look_is_not_said_to_be_gone",),
    ),
    Bug(
        "nothing of all databases is an answer",
        DATABASES,
        "asked_by_database",
        "if len(away) == len(answers):",
        "if False:",
        (f"{AWAY}::test_where_all_are_away_there_is_no_answer",),
    ),
    Bug(
        "a database that is away keeps a replica from saying that it lives in the others",
        "insight/observing/each_database.py",
        "in_each_database",
        "found = await asked_concurrently(asks, at_once=DATABASES_AT_ONCE_MAX)\n"
        "    for failure in (one for failures in found for one in failures):\n"
        "        raise failure",
        "for ask in asks:\n        for failure in await ask():\n            raise failure",
        (f"{AWAY}::test_a_replica_lives_in_the_database_that_is_there",),
    ),
    Bug(
        "a page is never live beside a database that hangs",
        "dashboard/live.py",
        "live_events",
        "with wanted_within(PART_S_MAX):",
        "if True:",
        ("tests/dashboard/test_live.py::test_a_part_has_time_for_the_database_that_works",),
    ),
    Bug(
        "a connection that is refused passes for a statement that is",
        "insight/questions.py",
        "is_of_a_statement",
        "error.statement is not None and",
        "",
        (ANSWERED,),
    ),
)
