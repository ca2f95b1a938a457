"""Guards of pauses and of what a person does by the windows, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

GATE = "tests/insight/test_pause_gate.py"
ACT = "tests/insight/test_actions.py"
PAUSES = "tests/insight/test_pauses.py"
OBSERVER = "tests/insight/test_observer.py"
TABLES = "insight/tables.py"
OBSERVING = "insight/observing/observer.py"
PRESENCE = "insight/observing/presence.py"
REPORT = "insight/observing/report.py"
ACTIONS = "insight/steering/actions.py"
AUDIT = "insight/steering/audit.py"
PAUSING = "insight/steering/pauses.py"

STEERED = "tests/simulation/test_simulation.py::test_steered"

INSIGHT_STEERING_BUGS = (
    Bug(
        "a claim is begun behind a pause",
        "rows/eligibility.py",
        "EligibleParts.whole",
        "*self.gates",
        "",
        (f"{STEERED}[1]",),
    ),
    Bug(
        "a claim that resumes does not ask for pauses",
        "pipelines/fetching/claim_builder.py",
        "ClaimBuilder.next",
        "limit=limit, related",
        "limit=limit, eligible=self._last[1].eligible if after is None else"
        ' __import__("sqlalchemy").and_(*self._last[1].eligible.clauses[:-1]), related',
        ("tests/pipelines/test_gates.py::test_a_claim_that_resumes_asks_the_gates",),
    ),
    Bug(
        "a pause that is committed is not seen by a pipeline that runs",
        TABLES,
        "InsightTables.pause_gate",
        "not_(self.is_paused(pipeline))",
        "not_(self.is_paused(pipeline + '_'))",
        (f"{STEERED}[1]",),
    ),
    Bug(
        "a pause ends by the clock of the process",
        TABLES,
        "InsightTables.is_paused",
        "paused.until > database_now()",
        'paused.until > __import__("datetime").datetime.now(__import__("datetime").UTC)',
        (f"{GATE}::test_until_ends_it_by_the_databases_clock",),
    ),
    Bug(
        "a pause has no end",
        TABLES,
        "InsightTables.is_paused",
        "or_(paused.until.is_(None), paused.until > database_now()),",
        "",
        (f"{GATE}::test_until_ends_it_by_the_databases_clock",),
    ),
    Bug(
        "a pause without an end is none",
        TABLES,
        "InsightTables.is_paused",
        "paused.until.is_(None), ",
        "",
        (f"{GATE}::test_what_is_paused_claims_nothing",),
    ),
    Bug(
        "a pause stops all pipelines",
        TABLES,
        "InsightTables.is_paused",
        "paused.pipeline == literal(pipeline, String),",
        "",
        (f"{GATE}::test_another_pipeline_goes_on",),
    ),
    Bug(
        "a live lease is released without force",
        ACTIONS,
        "Actions.release",
        "only_ended=not force",
        "only_ended=False",
        (f"{ACT}::test_a_live_lease_needs_force",),
    ),
    Bug(
        "a release leaves related rows to their expiry",
        ACTIONS,
        "Actions.release",
        "if pipeline.name == seen.owner",
        "if pipeline.name != seen.owner",
        (f"{ACT}::test_what_its_holder_has_locked_for_it_is_freed",),
    ),
    Bug(
        "refused actions leave no line in the audit",
        AUDIT,
        "audited",
        '_tell(act, f"{_kind_of(error)}: {type(error).__name__}")',
        "pass",
        (f"{ACT}::test_a_live_lease_needs_force",),
    ),
    Bug(
        "an action needs no reason",
        AUDIT,
        "audited",
        "act.check()",
        "pass",
        (f"{ACT}::test_nobody_acts_for_no_reason",),
    ),
    Bug(
        "a reason may forge a line of the audit",
        AUDIT,
        "_tell",
        "name: shown(value)",
        "name: str(value)",
        (f"{ACT}::test_no_line_of_the_audit_can_be_forged",),
    ),
    Bug(
        "lines of the audit are counted instead of shown",
        "logs.py",
        "get_audit_logger",
        "counts_repeats=False",
        "counts_repeats=True",
        (f"{ACT}::test_each_action_is_told_however_many_there_are",),
    ),
    Bug(
        "who acts hints nobody",
        ACTIONS,
        "_hint",
        "hint_after_commit(session, leased.model)",
        "pass",
        (f"{ACT}::test_pipelines_are_hinted_behind_the_commit",),
    ),
    Bug(
        "a pause is written that no claim asks for",
        PAUSING,
        "controls_of",
        "if gates is not None and tables.pause_gate not in gates:",
        "if False:",
        (f"{PAUSES}::test_half_a_pause_is_refused",),
    ),
    Bug(
        "a pause is written that has ended",
        PAUSING,
        "write_pause",
        "if ends is not None and ends <= now:",
        "if False:",
        (f"{PAUSES}::test_a_pause_that_has_ended_is_refused",),
    ),
    Bug(
        "a row that is not parked loses its count of attempts",
        ACTIONS,
        "Actions.unpark",
        "only=is_parked",
        "only=None",
        (f"{ACT}::test_a_row_is_parked_put_back_and_made_due",),
    ),
    Bug(
        "what is queued of a paused pipeline is begun",
        OBSERVING,
        "Observer._return_queued",
        "if pipeline.name in self.paused and",
        "if False and",
        (f"{OBSERVER}::test_what_is_queued_of_a_paused_pipeline_is_returned",),
    ),
    Bug(
        "an observer tells its trouble at each beat",
        OBSERVING,
        "Observer._contained",
        "if not self._is_failing:",
        "if True:",
        (f"{OBSERVER}::test_a_table_that_is_dropped_harms_nothing",),
    ),
    Bug(
        "an observer ends at the first error",
        OBSERVING,
        "Observer._contained",
        "except Exception as error:",
        "except ZeroDivisionError as error:",
        (f"{OBSERVER}::test_a_table_that_is_dropped_harms_nothing",),
    ),
    Bug(
        "a replica that stops leaves its row",
        OBSERVING,
        "Observer.__aexit__",
        "await self._contained(self._leave)",
        "pass",
        (f"{OBSERVER}::test_a_replica_says_that_it_lives_and_that_it_stops",),
    ),
    Bug(
        "a row that was swept never comes back",
        PRESENCE,
        "beat",
        "await _appear(connection, tables.replicas, row, now=found[0])",
        "pass",
        (f"{OBSERVER}::test_a_row_that_was_swept_comes_back",),
    ),
    Bug(
        "the rows of dead replicas stay",
        OBSERVING,
        "Observer._beat_in",
        "if sweeps and",
        "if False and",
        (f"{OBSERVER}::test_a_row_that_was_swept_comes_back",),
    ),
    Bug(
        "an observer asks for each pipeline apart",
        PRESENCE,
        "beat",
        "found = (await connection.execute(written)).first()",
        "await connection.execute(select(*answer)); "
        "found = (await connection.execute(written)).first()",
        (f"{OBSERVER}::test_an_observer_at_rest_asks_little",),
    ),
    Bug(
        "a report grows with what it tells of",
        REPORT,
        "report_of",
        "while _bytes_of(report) > REPORT_BYTES_MAX:",
        "while False:",
        (f"{OBSERVER}::test_a_report_is_bounded",),
    ),
    Bug(
        "a process has two observers",
        OBSERVING,
        "Observer.__aenter__",
        "if running is not None and running[0] == os.getpid():",
        "if False:",
        (f"{OBSERVER}::test_a_replica_has_one_observer",),
    ),
    Bug(
        "a paused claim on SQLite reads all rows that are due",
        "dialects/sqlite/leases.py",
        "_due",
        "if request.gates:",
        "if False:",
        (
            "tests/insight/test_paused_claims.py"
            "::test_a_paused_claim_costs_the_same_however_many_are_due",
        ),
    ),
    Bug(
        "a gate over a column of the row stands where there is no row",
        "rows/expressions/row_free.py",
        "of_no_row",
        "if not _mentions(leased, one)",
        "",
        (
            "tests/insight/test_paused_claims.py"
            "::test_a_gate_that_asks_for_the_row_is_asked_for_each",
        ),
    ),
)
