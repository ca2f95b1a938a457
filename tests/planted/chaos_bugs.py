"""The teeth of the chaos: guards without which a minute of it must find something."""

from __future__ import annotations

from bug import Bug

MINUTE = "tests/chaos/test_chaos.py::test_a_minute_of_chaos"

CHAOS_BUGS = (
    Bug(
        "chaos: an outcome takes its row back before it is written",
        "leases/apply.py",
        "lock_for_apply",
        "rows =",
        "for item in items:\n        mine = {leased.column('lock_token'): item.lock_token}\n       "
        " await connection.execute(update(leased.table).where(leased.key =="
        " item.id).values(mine))\n    rows =",
        (MINUTE,),
    ),
    Bug(
        "chaos: an expired lease is renewed",
        "leases/renew.py",
        "_renewal",
        ', leased.column("lock_expires_at") > database_instant()',
        "",
        (MINUTE,),
    ),
    Bug(
        "chaos: a renewal does not prolong the lease",
        "leases/renew.py",
        "_renewal",
        "=database_time_after(lock_timeout)",
        '=leased.column("lock_expires_at")',
        (MINUTE,),
    ),
    Bug(
        "chaos: a claim takes rows whose leases are alive",
        "rows/eligibility.py",
        "is_free",
        " <= database_now()",
        ".is_not(None)",
        (MINUTE,),
    ),
    Bug(
        "chaos: work goes on when its lease is lost",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater._lose_all",
        "attempt.lose()",
        "pass",
        (MINUTE,),
    ),
)
