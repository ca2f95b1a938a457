"""The guards of the hops to SQLite's thread: what the library looks like without each, and the
tests that must notice.
"""

from __future__ import annotations

from bug import Bug

HOPS = "tests/leases/test_sqlite_hops.py"
WRONG = "tests/leases/test_sqlite_hops_gone_wrong.py"

HOPS_BUGS = (
    Bug(
        "a statement that came along with its BEGIN runs though nobody waits for it",
        "dialects/sqlite/hops.py",
        "Hops._run",
        "            if self._is_stopped:\n                raise _interrupted()\n",
        "",
        (f"{WRONG}::test_nothing_is_begun_behind_a_wait_that_nobody_waits_for",),
    ),
    Bug(
        "a BEGIN that failed is not sent again",
        "dialects/sqlite/hops.py",
        "Hops._run",
        "self._begin.run(self._driver._conn)\n            self._begin = None",
        "begin, self._begin = self._begin, None\n            begin.run(self._driver._conn)",
        (f"{WRONG}::test_a_begin_that_fails_is_sent_again",),
    ),
    Bug(
        "a BEGIN with a comment of the host's is not sent along",
        "dialects/sqlite/hops.py",
        "Hops.takes",
        "not in",
        "!=",
        (f"{HOPS}::test_a_host_may_comment_on_the_begin",),
    ),
    Bug(
        "a connection keeps the cursors of its hops",
        "dialects/sqlite/hops.py",
        "Hops.taken",
        "del driver.cursor, driver.interrupt",
        "del driver.interrupt",
        (f"{HOPS}::test_the_hosts_own_transactions_are_left_alone",),
    ),
    Bug(
        "a connection of a host's own class is hastened",
        "dialects/sqlite/hops.py",
        "_is_known",
        "type(driver) is not aiosqlite.Connection",
        "not isinstance(driver, aiosqlite.Connection)",
        (f"{HOPS}::test_what_is_not_known_keeps_its_own_cursors",),
    ),
    Bug(
        "a transaction takes the hops of the one before",
        "dialects/sqlite/hops.py",
        "in_one_hop_each",
        "info.pop(_HOPS, None)\n        ",
        "",
        (f"{HOPS}::test_work_that_commits_by_itself",),
    ),
    Bug(
        "the host's busy timeout stays as it was for a BEGIN",
        "dialects/sqlite/hops.py",
        "_Begin.run",
        '"PRAGMA busy_timeout = {self.usual_ms}"',
        '"PRAGMA busy_timeout = {self.wait_ms}"',
        (f"{WRONG}::test_the_wait_for_the_file_is_bounded_and_then_as_before",),
    ),
    Bug(
        "a rollback is spared though something is under way",
        "dialects/sqlite/hops.py",
        "_SkippedRollback.__call__",
        "        if self._driver.in_transaction:\n            await self._roll_back()\n",
        "",
        (f"{HOPS}::test_a_pool_that_resets_nothing",),
    ),
    Bug(
        "a hop brings all rows that there will ever be",
        "dialects/sqlite/hops.py",
        "HopsCursor._bring",
        "len(rows) < ROWS_MAX",
        "rows is not None",
        (f"{HOPS}::test_many_rows",),
    ),
)
