"""Guards of questions that are asked where little may be asked, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

STATUS = "tests/insight/test_status.py"
PREPARED = "tests/insight/test_prepared.py"
READERS = "tests/insight/test_readers.py"
AWAY = "tests/cli/test_no_database.py"
WINGS = "tests/insight/test_explain_wings.py"
NAMED = f"{PREPARED}::test_a_prepared_transaction_is_named"

ASKED_BUGS = (
    Bug(
        "status names parked rows in no order",
        "insight/listing/states.py",
        "_found",
        ".order_by(*question.order())",
        "",
        (f"{STATUS}::test_parked_rows_are_counted_where_an_index_finds_them",),
    ),
    Bug(
        "a row that a prepared transaction has is nobody's",
        "insight/dialects/postgresql.py",
        "",
        "WHERE p.transaction::text = :xmax",
        "WHERE FALSE AND p.transaction::text = :xmax",
        (NAMED,),
    ),
    Bug(
        "a table that a prepared transaction has is nobody's",
        "insight/dialects/postgresql.py",
        "",
        "(l.pid IS NOT NULL OR p.gid IS NOT NULL)",
        "l.pid IS NOT NULL",
        (NAMED,),
    ),
    Bug(
        "a prepared transaction among those that share a row is passed over",
        "insight/dialects/postgresql.py",
        "",
        "WHERE p.transaction::text IN {_MEMBERS}",
        "WHERE FALSE AND p.transaction::text IN {_MEMBERS}",
        (f"{PREPARED}::test_a_prepared_transaction_among_those_that_share_a_row_is_named",),
    ),
    Bug(
        "a prepared transaction is left behind from its first moment",
        "insight/dialects/postgresql.py",
        "PostgresqlInsight.left_prepared",
        "LEFT_AFTER.total_seconds()",
        "0.0",
        (f"{PREPARED}::test_what_is_about_to_be_committed_or_has_only_read_is_no_trouble",),
    ),
    Bug(
        "a prepared transaction that has only read is a trouble",
        "insight/dialects/postgresql.py",
        "",
        "l.mode <> 'AccessShareLock'",
        "l.mode <> ''",
        (f"{PREPARED}::test_what_is_about_to_be_committed_or_has_only_read_is_no_trouble",),
    ),
    Bug(
        "a prepared transaction that was left behind is no trouble",
        "insight/counting/running.py",
        "status_of",
        "left=waiting.left,",
        "",
        (NAMED,),
    ),
    Bug(
        "check says nothing of a prepared transaction",
        "insight/checking/checkup.py",
        "_findings_of",
        "for by in await left_in(connection, table, apart=apart)",
        "for by in ()",
        (NAMED,),
    ),
    Bug(
        "the name of a prepared transaction is printed as it is",
        "insight/shown.py",
        "sql_text",
        "all(visible(character) == character for character in text)",
        "True",
        (f"{PREPARED}::test_a_name_that_moves_the_cursor_is_escaped",),
    ),
    Bug(
        "a question needs the right to lock",
        "insight/questions.py",
        "_labelled",
        "return select(*labelled).where(where)",
        "return select(*labelled).where(where).with_for_update(read=True)",
        (f"{READERS}::test_all_questions_are_answered",),
    ),
    Bug(
        "a driver's thread ends behind the loop to which it says so",
        "insight/apps.py",
        "_threads_ended_behind_errors",
        "await asyncio.to_thread(_join, begun, monotonic() + THREADS_END_WITHIN_S)",
        "",
        (f"{AWAY}::test_threads_of_drivers_end_before_the_loop_does",),
    ),
    Bug(
        "a server that never answers is told in words of the library",
        "cli/answering.py",
        "message_of",
        "isinstance(error, TransactionTimeout | TimeoutError)",
        "isinstance(error, TimeoutError)",
        (f"{AWAY}::test_a_server_that_never_answers",),
    ),
    Bug(
        "a row of another flow says how far this one is",
        "insight/counting/wings.py",
        "flow_of_row",
        "if await ask_value(connection, mine, apart=True) != 1:",
        "if False:",
        (f"{WINGS}::test_a_row_of_a_flow_says_how_far_it_is",),
    ),
    Bug(
        "a shard that no replica holds is wanted by none",
        "insight/asking/questioner.py",
        "Questioner._asked",
        'getattr(pipeline, "ready_anywhere", pipeline.ready)',
        "pipeline.ready",
        (f"{WINGS}::test_a_row_of_a_flow_says_how_far_it_is",),
    ),
    Bug(
        "an explanation says nothing of a graph",
        "insight/counting/running.py",
        "with_replicas",
        "facts.wing or graph_line(reports)",
        "facts.wing",
        (f"{WINGS}::test_a_row_of_a_graph_says_what_is_inside",),
    ),
)
