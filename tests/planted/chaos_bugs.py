"""The teeth of the chaos: guards without which a minute of it must find something."""

from __future__ import annotations

from bug import Bug

MINUTE = "tests/chaos/test_chaos.py::test_a_minute_of_chaos"

CHAOS_BUGS = (
    Bug(
        "chaos: an outcome takes its row back before it is written",
        "leases/apply.py",
        "    rows = (await connection.execute(statement, dialect.tokens_given(leases_of(items)))).all()\n",
        "    for item in items:\n"
        "        mine = {leased.column('lock_token'): item.lock_token}\n"
        "        await connection.execute(update(leased.table).where(leased.key == item.id).values(mine))\n"
        "    rows = (await connection.execute(statement, dialect.tokens_given(leases_of(items)))).all()\n",
        (MINUTE,),
    ),
    Bug(
        "chaos: an expired lease is renewed",
        "leases/renew.py",
        'valid = and_(dialect.under_tokens(leased), leased.column("lock_expires_at") > database_instant())',
        "valid = and_(dialect.under_tokens(leased))",
        (MINUTE,),
    ),
    Bug(
        "chaos: a renewal does not prolong the lease",
        "leases/renew.py",
        "values = renewed_values(leased, expires_at=database_time_after(lock_timeout))",
        'values = renewed_values(leased, expires_at=leased.column("lock_expires_at"))',
        (MINUTE,),
    ),
    Bug(
        "chaos: a claim takes rows whose leases are alive",
        "rows/eligibility.py",
        "    return or_(expires_at.is_(None), expires_at <= database_now())\n",
        "    return or_(expires_at.is_(None), expires_at.is_not(None))\n",
        (MINUTE,),
    ),
    Bug(
        "chaos: work goes on when its lease is lost",
        "pipelines/heartbeater.py",
        "                attempt.lose()\n",
        "                pass\n",
        (MINUTE,),
    ),
)
