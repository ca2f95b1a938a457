"""Guards of streams that were missing for a stranger; and the tests that miss them."""

from __future__ import annotations

from bug import Bug

CONTEXT = "tests/streams/computing/test_context.py"
ENCODING = "tests/streams/computing/test_encoding.py"

ARGUMENTS = "tests/streams/queries/test_arguments.py"

POSITIONS = "tests/streams/inputs/test_positions.py"

COMPUTE = "tests/streams/computing/test_compute.py"

STREAMS_EYES_BUGS = (
    Bug(
        "a row without a digest is not named",
        "streams/computing/rows.py",
        "_digested_apart",
        "broken.setdefault(key, ValueError(msg))",
        "broken.setdefault(key, error)",
        (f"{COMPUTE}::test_a_row_that_has_no_digest_fails_its_own_shard",),
    ),
    Bug(
        "a right that is lacking is found by the first read",
        "streams/dialects/postgresql.py",
        "_problem_with_sequence",
        "if not one.may_read:",
        "if False:",
        (f"{POSITIONS}::test_a_sequence_that_the_role_may_not_read",),
    ),
    Bug(
        "a name that one database cannot store is taken",
        "streams/inputs/arguments.py",
        "check_party",
        "not is_storable(name)",
        "False",
        (f"{ARGUMENTS}::test_names",),
    ),
    Bug(
        "half a number is the number of a step",
        "streams/inputs/arguments.py",
        "check_whole_number",
        "isinstance(number, int) and not isinstance(number, bool)",
        "isinstance(number, int | float)",
        (f"{ARGUMENTS}::test_numbers",),
    ),
    Bug(
        "a verification of nothing finds nothing",
        "streams/queries/verification.py",
        "verify",
        ", low=first)",
        ")",
        (f"{ARGUMENTS}::test_wrong_arguments",),
    ),
    Bug(
        "a producer may have half a number",
        "streams/inputs/event_log.py",
        "_check",
        'check_whole_number(seq, "the number of a producer")',
        "pass",
        (f"{ARGUMENTS}::test_wrong_arguments",),
    ),
    Bug(
        "all results of a batch have one idempotency key",
        "streams/computing/context.py",
        "StepContext.idempotency_key",
        "self._group is None and not parts",
        "False",
        (f"{CONTEXT}::test_an_idempotency_key_of_a_batch_names_its_result",),
    ),
    Bug(
        "a key of a dict is stored as the name of a member",
        "streams/computing/value_plans.py",
        "_dict_key",
        'str.__str__(cast("str", key)) if',
        "str(key) if",
        (f"{ENCODING}::test_keys_of_a_dict_come_back",),
    ),
    Bug(
        "a time is stored as a key that is a date",
        "streams/computing/value_plans.py",
        "_dict_key",
        "or (cls is date and isinstance(key, datetime))",
        "",
        (f"{ENCODING}::test_wrong_types",),
    ),
    Bug(
        "a value that equals a declared one is stored for it",
        "streams/computing/value_plans.py",
        "_literal_text",
        "(type(value), value) not in kinds",
        "value not in values",
        (f"{ENCODING}::test_wrong_types",),
    ),
)
