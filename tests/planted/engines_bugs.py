"""The guards around the host's sessions and engines, and the tests that must notice when one is missing."""

from __future__ import annotations

from typing import Final

from bug import Bug

MANAGER: Final = "tests/pipelines/test_manager_engines.py"
DIALECTS: Final = "tests/conformance/test_dialects.py"
COMMITTED: Final = f"{DIALECTS}::test_sessions_that_commit_every_statement_are_refused"

ENGINES_BUGS: Final[tuple[Bug, ...]] = (
    Bug(
        "sessions of one connection are taken",
        "leases/dialects/__init__.py",
        "    if isinstance(bind, Connection):\n",
        "    if False:\n",
        (f"{DIALECTS}::test_sessions_of_one_connection_are_refused[sqlite-create_savepoint]",),
    ),
    Bug(
        "only an engine that connects under AUTOCOMMIT is refused",
        "leases/dialects/__init__.py",
        ", bind.get_execution_options()):",
        "):",
        (f"{COMMITTED}[sqlite-options of the engine]", f"{COMMITTED}[sqlite-where the session routes]"),
    ),
    Bug(
        "AUTOCOMMIT of the session is overlooked",
        "leases/dialects/__init__.py",
        'getattr(session.sync_session, "execution_options", {}), ',
        "",
        (f"{COMMITTED}[sqlite-options of the session]",),
    ),
    Bug(
        "the session factory is looked at when the pipeline starts",
        "pipelines/manager.py",
        "        check_session_factory(self._session_factory, pipeline.leased)\n",
        "",
        (
            f"{MANAGER}::test_a_factory_that_commits_every_statement_is_refused",
            f"{MANAGER}::test_what_is_refused_while_the_manager_runs_leaves_no_trace",
        ),
    ),
)
