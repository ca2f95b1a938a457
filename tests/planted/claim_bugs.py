"""The guards of claims that resume, and the tests that must notice when one is missing."""

from __future__ import annotations

from bug import Bug

CURSOR = "tests/pipelines/test_claim_cursor.py"
FETCHER = "tests/pipelines/test_fetcher_resumes.py"
RESUMED = "tests/leases/test_claim_resumed.py"
INDEX = "tests/rows/test_due_index.py"

CLAIM_BUGS = (
    Bug(
        "claims resume for ever",
        "pipelines/claim_cursor.py",
        "return self.position if now < self.resumes_until else None",
        "return self.position",
        (f"{FETCHER}::test_rows_of_the_dead_are_recovered_under_a_backlog",),
    ),
    Bug(
        "claims never resume",
        "pipelines/claim_cursor.py",
        "return self.position if now < self.resumes_until else None",
        "return None",
        (f"{FETCHER}::test_claims_follow_one_another",),
    ),
    Bug(
        "a hint does not lead to the head",
        "pipelines/claim_cursor.py",
        "self.owes_look = self.owes_look or hinted",
        "self.owes_look = self.owes_look or False",
        (f"{FETCHER}::test_the_next_claim_after_a_hint_looks_at_the_head",),
    ),
    Bug(
        "a spared look is forgotten",
        "pipelines/claim_cursor.py",
        "self.owes_look = self.owes_look or hinted",
        "self.owes_look = hinted",
        (f"{CURSOR}::test_a_spared_look_stays_owed",),
    ),
    Bug(
        "a short claim that resumed does not lead to the head",
        "pipelines/claim_cursor.py",
        "self.owes_look = self.owes_look or not is_full",
        "self.owes_look = self.owes_look or False",
        (f"{CURSOR}::test_after_a_short_claim_the_head_is_looked_at",),
    ),
    Bug(
        "a rest does not lead to the head",
        "pipelines/claim_cursor.py",
        "        self.owes_look = not is_full\n",
        "        self.owes_look = False\n",
        (f"{CURSOR}::test_after_a_short_claim_the_head_is_looked_at",),
    ),
    Bug(
        "cheap looks are spared",
        "pipelines/claim_cursor.py",
        "return excess_s if excess_s >= DEAR_S else 0.0",
        "return max(0.0, excess_s)",
        (f"{CURSOR}::test_cheap_looks_are_never_spared",),
    ),
    Bug(
        "dear looks are not spared",
        "pipelines/claim_cursor.py",
        "return excess_s if excess_s >= DEAR_S else 0.0",
        "return 0.0",
        (f"{CURSOR}::test_dear_looks_are_spared", f"{FETCHER}::test_a_storm_of_hints_walks_for_a_quarter_of_the_time"),
    ),
    Bug(
        "one slow look is taken for a dear one",
        "pipelines/claim_cursor.py",
        "if len(self._looks_s) < REMEMBERED:",
        "if not self._looks_s:",
        (f"{CURSOR}::test_one_slow_look_is_not_dear",),
    ),
    Bug(
        "looks are spared without bounds",
        "pipelines/claim_cursor.py",
        "min(SPARED_PER_DEAR * self._excess_s(), self._spared_for_s_max)",
        "SPARED_PER_DEAR * self._excess_s()",
        (f"{CURSOR}::test_looks_are_not_spared_for_longer_than_a_fetch_delay",),
    ),
    Bug(
        "claims resume for as long as the host rests",
        "pipelines/claim_cursor.py",
        "self._resumes_for_s = min(*fetch_delays_s, lock_timeout_s)",
        "self._resumes_for_s = min(fetch_delays_s)",
        (f"{CURSOR}::test_claims_resume_for_no_longer_than_a_lease_lasts",),
    ),
    Bug(
        "looks are spared for as long as the host rests",
        "pipelines/claim_cursor.py",
        "self._spared_for_s_max = min(max(fetch_delays_s), lock_timeout_s)",
        "self._spared_for_s_max = max(fetch_delays_s)",
        (f"{CURSOR}::test_claims_resume_for_no_longer_than_a_lease_lasts",),
    ),
    Bug(
        "a failure keeps the cursor",
        "pipelines/fetcher.py",
        "        self._cursor.failed()\n",
        "",
        (f"{FETCHER}::test_after_a_failed_fetch_the_head_is_looked_at",),
    ),
    Bug(
        "a spared hint waits for the next claim",
        "pipelines/fetcher.py",
        "if hinted and start is not None:",
        "if hinted and start is None:",
        (f"{FETCHER}::test_a_spared_hint_is_followed_though_the_queue_is_not_low",),
    ),
    Bug(
        "the timer of a spared hint outlives the fetcher",
        "pipelines/fetcher.py",
        "for timer in (self._alarm, self._spared_hint):",
        "for timer in (self._alarm,):",
        (f"{FETCHER}::test_a_spared_hint_ends_with_the_fetcher",),
    ),
    Bug(
        "the fetcher rests before it has looked at the head",
        "pipelines/fetcher.py",
        "if resumed and claimed < limit:",
        "if resumed and claimed < 0:",
        (f"{FETCHER}::test_when_the_line_behind_is_empty_the_head_is_looked_at_at_once",),
    ),
    Bug(
        "rows of one place have no order",
        "rows/eligibility.py",
        ", leased.attribute(leased.key_name).asc())",
        ",)",
        (RESUMED,),
    ),
    Bug(
        "rows of one place are passed over on PostgreSQL",
        "leases/dialects/postgresql.py",
        'return tuple_(place, key) > tuple_(bindparam("rowlock_after_place", type_=place.type), after_key)',
        'return (place > bindparam("rowlock_after_place", type_=place.type)) & (key == key) & after_key.is_not(None)',
        (f"{RESUMED}::test_no_row_with_a_schedule_is_skipped_or_comes_twice",),
    ),
    Bug(
        "rows of one place are passed over on SQLite",
        "leases/dialects/sqlite.py",
        "return [and_(place == after_place, key > after_key), place > after_place]",
        "return [place > after_place]",
        (f"{RESUMED}::test_no_row_with_a_schedule_is_skipped_or_comes_twice",),
    ),
    Bug(
        "the line ends with rows of one place on SQLite",
        "leases/dialects/sqlite.py",
        "return [and_(place == after_place, key > after_key), place > after_place]",
        "return [and_(place == after_place, key > after_key)]",
        (f"{RESUMED}::test_no_row_with_a_schedule_is_skipped_or_comes_twice",),
    ),
    Bug(
        "times in another shape are passed over",
        "leases/dialects/sqlite.py",
        "place_as_written=place_as_written,",
        'place_as_written=place and place.strftime("%Y-%m-%d %H:%M:%S.%f"),',
        (f"{RESUMED}::test_times_in_another_shape_are_found",),
    ),
    Bug(
        "items come in the order in which PostgreSQL returns them",
        "leases/dialects/postgresql.py",
        "for row in sorted(rows, key=itemgetter(0))",
        "for row in sorted(rows, key=itemgetter(0), reverse=True)",
        (f"{RESUMED}::test_items_come_in_line_however_the_database_returns_them",),
    ),
    Bug(
        "the index lacks the key",
        "rows/due_index.py",
        "return [_place_in_line(table_name, place), key], {",
        "return [_place_in_line(table_name, place)], {",
        (INDEX,),
    ),
    Bug(
        "a claim that may fail is committed at once",
        "leases/dialects/postgresql.py",
        "    return all(is_read_surely(one) and not (",
        "    return bool(types) or all(is_read_surely(one) and not (",
        ("tests/leases/test_claim_at_once.py::test_a_claim_is_a_transaction_only_where_it_may_fail",),
    ),
    Bug(
        "a claim with documents that the host reads is committed at once",
        "leases/dialects/postgresql.py",
        'getattr(dialect, "_json_deserializer", None) is not None',
        "False",
        ("tests/leases/test_claim_at_once.py::test_documents_that_the_host_reads_itself_may_not_be_readable",),
    ),
    Bug(
        "a claim is never committed at once",
        "leases/claim.py",
        "        alone = not order.related and order",
        "        alone = False and order",
        ("tests/leases/test_claim_at_once.py::test_a_claim_is_a_transaction_only_where_it_may_fail",),
    ),
    Bug(
        "a row of which a time is missing is taken for whole",
        "leases/dialects/postgresql.py",
        "row if order.with_rows and is_whole else None",
        "row if order.with_rows else None",
        ("tests/leases/test_claim_at_once.py::test_a_time_that_python_has_not_costs_its_own_row_alone",),
    ),
)
