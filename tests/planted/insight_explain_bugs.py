"""Guards of explanations and of the commands that print them. And the tests that miss them."""

from __future__ import annotations

from bug import Bug

EXPLAIN = "tests/insight/test_explain.py"
PARTS = "tests/insight/test_parts.py::test_parts_conjoined_are_the_condition_of_a_claim"
REFUSED = "tests/insight/test_refused.py"
STATUS = "tests/insight/test_status.py"
COMMAND = "tests/cli/test_explain.py"
SHOWN = f"{REFUSED}::test_control_characters_of_a_row_are_shown"

EXPLAIN_BUGS = (
    Bug(
        "an explanation does not know of the gates",
        "insight/asking/questioner.py",
        "Questioner._asked",
        "Seams.of(self._gates_of(host), ())",
        "Seams()",
        (PARTS,),
    ),
    Bug(
        "an explanation does not know who awaits a row",
        "insight/asking/questioner.py",
        "Questioner._asked",
        "beside.locking_pipelines_of(leased, but=pipeline.name)",
        "()",
        (PARTS, f"{EXPLAIN}::test_each_verdict_has_its_text"),
    ),
    Bug(
        "a row that is held counts as one in line",
        "insight/verdicts.py",
        "verdicts_of",
        "is_live and not facts.is_own_lease",
        "False",
        (PARTS,),
    ),
    Bug(
        "a part that the database refuses costs the whole explanation",
        "insight/questions.py",
        "whole_else_apart",
        "if not is_of_a_statement(error):",
        "if True:",
        (f"{REFUSED}::test_a_part_that_the_database_refuses_costs_itself_alone",),
    ),
    Bug(
        "parts that are asked alone have no savepoint",
        "insight/questions.py",
        "ask_part",
        "async with connection.begin_nested():\n            return await ask()",
        "return await ask()",
        (f"{REFUSED}::test_a_column_that_was_dropped_costs_itself_alone",),
    ),
    Bug(
        "control characters of a row reach the terminal",
        "insight/shown.py",
        "visible",
        "unicodedata.category(character) not in _HIDDEN_KINDS",
        "True",
        (SHOWN,),
    ),
    Bug(
        "a value of a row has no longest length",
        "insight/shown.py",
        "shown",
        "str(value)[: chars_max + 1]",
        "str(value)",
        (f"{EXPLAIN}::test_a_value_is_cut_before_it_is_read",),
    ),
    Bug(
        "hidden columns are shown",
        "insight/questions.py",
        "RowQuestion.named",
        "column not in self.hidden",
        "True",
        (f"{REFUSED}::test_hidden_columns_are_not_shown",),
    ),
    Bug(
        "conditions of hidden columns say their values",
        "insight/questions.py",
        "RowQuestion.text",
        "with_values=not hides",
        "with_values=True",
        (f"{REFUSED}::test_hidden_columns_are_not_shown",),
    ),
    Bug(
        "questions may write",
        "insight/dialects/postgresql.py",
        "PostgresqlInsight.begin_reading",
        "await connection.execute(_BEGIN",
        'await connection.scalar(_BEGIN.__class__("SELECT :timeout")',
        (
            f"{REFUSED}::test_the_database_lets_nothing_be_written",
            f"{REFUSED}::test_a_statement_that_takes_too_long_is_ended",
        ),
    ),
    Bug(
        "rows of one time are counted before one another",
        "insight/questions.py",
        "place_of",
        "and_(first.place == its_place, first.key < given)",
        "first.place == its_place",
        (f"{EXPLAIN}::test_rows_of_one_time_stand_in_the_order_of_their_keys",),
    ),
    Bug(
        "a key is compared in the type of its column",
        "insight/questions.py",
        "is_key",
        "literal(key, BigInteger) if is_number else key",
        "key",
        (f"{EXPLAIN}::test_a_key_that_no_column_holds",),
    ),
    Bug(
        "a count has no end",
        "insight/counting/counts.py",
        "_count",
        ".limit(COUNTED_MAX + 1)",
        "",
        (f"{STATUS}::test_counts_end_at_their_bound",),
    ),
    Bug(
        "a count may take as long as a question",
        "insight/insight.py",
        "Insight._waiting_of",
        "statement_timeout=self.limits.count_timeout",
        "statement_timeout=None",
        (f"{STATUS}::test_a_count_that_takes_too_long_is_an_answer",),
    ),
    Bug(
        "parked rows are counted where no index finds them",
        "insight/counting/counts.py",
        "_counts_parked",
        "and has_parked_index(leased)",
        "",
        (f"{STATUS}::test_parked_rows_are_counted_where_an_index_finds_them",),
    ),
    Bug(
        "a replica that has been silent for long runs its pipelines",
        "insight/counting/replicas.py",
        "ReplicaState.is_live",
        "self.seen_s <= DEAD_AFTER.total_seconds()",
        "True",
        (
            f"{STATUS}::test_replicas_are_listed",
            f"{STATUS}::test_rows_that_nobody_works_on_need_a_person",
        ),
    ),
    Bug(
        "a missing table of replicas takes every answer with it",
        "insight/counting/asking.py",
        "replicas_asked",
        "not is_of_a_statement(error)",
        "True",
        (f"{STATUS}::test_a_migration_that_was_not_run_costs_the_names_alone",),
    ),
    Bug(
        "a manager that is an app is started",
        "insight/apps.py",
        "_resolved",
        "return Insight.of(found)",
        "return Insight.of(await stack.enter_async_context(found))",
        (f"{COMMAND}::test_an_app_is_read_and_not_started",),
    ),
    Bug(
        "a row that is not there ends like one that is well",
        "cli/explain.py",
        "_code_of",
        "isinstance(answer, Explanation) and not answer.is_there",
        "False",
        (f"{COMMAND}::test_the_exit_code_says_whether_a_person_is_needed",),
    ),
    Bug(
        "an outage ends like wrong usage",
        "cli/answering.py",
        "_code_of",
        "or is_outage(error)",
        "",
        (f"{COMMAND}::test_a_database_that_is_away",),
    ),
)
