"""Guards of the marks that tokens end with, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

MARKS = "tests/rows/test_replica_marks.py"
TOKENS = "rows/lock_tokens.py"
CLAIMS = "dialects/postgresql/leases.py"

MARK_BUGS = (
    Bug(
        "a mark is kept after a fork",
        TOKENS,
        "",
        "os.register_at_fork(after_in_child=OWN_MARK.draw)",
        "pass",
        (f"{MARKS}::test_a_child_that_was_forked_has_another",),
    ),
    Bug(
        "a fresh token has no mark",
        TOKENS,
        "fresh_token",
        "random + OWN_MARK.octets",
        "os.urandom(TOKEN_BYTES)",
        (f"{MARKS}::test_tokens_of_one_process_end_alike",),
    ),
    Bug(
        "claims on PostgreSQL leave no mark",
        CLAIMS,
        "_new_token",
        'func.overlay(random, bindparam("rowlock_mark", type_=Text), MARK_AT)',
        "random",
        (f"{MARKS}::test_a_claim_leaves_the_mark",),
    ),
    Bug(
        "the mark is part of the statement that is kept",
        CLAIMS,
        "_new_token",
        'bindparam("rowlock_mark", type_=Text), MARK_AT',
        'bindparam("rowlock_own", replica_mark(), type_=Text), MARK_AT',
        (f"{MARKS}::test_a_mark_that_has_changed_is_that_of_the_next_claim",),
    ),
    Bug(
        "deaths are counted where the mark stands",
        TOKENS,
        "token_after",
        'f"{marked}{deaths:02x}{digits[MARK_AT - 1 :]}"',
        'f"{marked}{digits[MARK_AT - 1 :]}{deaths:02x}"',
        (f"{MARKS}::test_tokens_of_one_process_end_alike",),
    ),
)
