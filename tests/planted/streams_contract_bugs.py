"""Guards of what hosts test their flows with: without them a flow that is wrong would pass, or one
that is right would not.
"""

from __future__ import annotations

from bug import Bug

FURTHER = "tests/testing/streams/test_further_stages.py"
CONTRACT = "tests/testing/streams/test_stream_contract.py"
CRASHES = "tests/testing/streams/test_flow_crashes.py"

STREAMS_CONTRACT_BUGS = (
    Bug(
        "rows of a fold are not compared",
        "testing/streams/records.py",
        "FlowRecord._differences",
        "expected.folds.items()",
        "()",
        (f"{FURTHER}::test_rows_of_a_fold",),
    ),
    Bug(
        "columns of the host are a flow's",
        "testing/streams/folded.py",
        "ExpectedRows._counting",
        "if name in self._set and",
        "if",
        (f"{FURTHER}::test_rows_of_a_fold",),
    ),
    Bug(
        "what the database gives is a difference",
        "testing/streams/folded.py",
        "ExpectedRows._counting",
        "(value is not None or name not in self._model.given)",
        "True",
        (f"{FURTHER}::test_what_the_database_gives_is_not_compared",),
    ),
    Bug(
        "rows by several columns have buckets of their own",
        "testing/streams/folded.py",
        "ExpectedRows.bucket_of",
        "key if len(self._model.keys) == 1 else json.loads(key)[0]",
        "key",
        (f"{FURTHER}::test_rows_by_several_columns",),
    ),
    Bug(
        "a fold is tested with rows that lag behind",
        "testing/streams/running.py",
        "flow_pipeline",
        "if program.folds:",
        "if False:",
        (f"{FURTHER}::test_a_fold_writes_with_every_step",),
    ),
    Bug(
        "the clock is no hidden input",
        "testing/streams/hidden_inputs.py",
        "_advice",
        "return _CLOCK",
        "return None",
        (f"{CONTRACT}::test_a_flow_that_breaks_it_is_found",),
    ),
    Bug(
        "chance is no hidden input",
        "testing/streams/hidden_inputs.py",
        "_advice",
        "if owner is not None and owner is _SHARED_CHANCE:",
        "if False:",
        (f"{CONTRACT}::test_a_flow_that_breaks_it_is_found",),
    ),
    Bug(
        "a handler must not log",
        "testing/streams/hidden_inputs.py",
        "_is_harmless",
        'module.partition(".")[0] == _HARMLESS',
        "False",
        (f"{CONTRACT}::test_what_is_harmless_is_not_found",),
    ),
    Bug(
        "values must not be hashed",
        "testing/streams/hidden_inputs.py",
        "_advice",
        'is_own = _is_of_the_host(frame) and frame.f_code.co_name != "__hash__"',
        "is_own = True",
        (f"{CONTRACT}::test_what_is_harmless_is_not_found",),
    ),
    Bug(
        "another process has the same hashes",
        "testing/streams/another_process.py",
        "reference_elsewhere",
        '"PYTHONHASHSEED": seed',
        '"PYTHONHASHSEED": os.environ["PYTHONHASHSEED"]',
        (f"{CONTRACT}::test_the_order_of_a_set_is_found",),
    ),
    Bug(
        "no answer is lost",
        "testing/streams/trial.py",
        "_LostAnswers.__call__",
        "self.count % ANSWERS == 0",
        "False",
        (f"{CONTRACT}::test_replays_that_differ_are_found",),
    ),
    Bug(
        "nothing was replayed, and the test passes",
        "testing/streams/contract.py",
        "StreamContract.test_replays_come_out_as_before",
        "assert trial.replayed",
        "assert True",
        (f"{CONTRACT}::test_what_a_host_has_to_say",),
    ),
    Bug(
        "layouts are not compared",
        "testing/streams/contract.py",
        "StreamContract.test_comes_to_the_same_in_sixteen_shards",
        "for shards in (2, 16):",
        "for shards in (1, 1):",
        (f"{CONTRACT}::test_a_flow_that_breaks_it_is_found",),
    ),
    Bug(
        "what is stored of a state is not compared",
        "testing/streams/trial.py",
        "_changed",
        "after == text",
        "after is not None",
        (f"{CONTRACT}::test_a_flow_that_breaks_it_is_found",),
    ),
    Bug(
        "messages are not compared",
        "testing/streams/records.py",
        "FlowRecord._differences",
        "expected.messages.keys() & self.messages.keys()",
        "()",
        (f"{CONTRACT}::test_a_flow_that_breaks_it_is_found",),
    ),
    Bug(
        "what became of the others is not compared",
        "testing/streams/poison.py",
        "PoisonedFlow._check_set_aside",
        "left[0] == left[1]",
        "left",
        (f"{CONTRACT}::test_a_flow_that_breaks_it_is_found",),
    ),
    Bug(
        "what comes after a crash is not compared",
        "testing/streams/crashes.py",
        "crash_flow_everywhere",
        "if different:",
        "if False:",
        (f"{CRASHES}::test_a_replay_that_differs_is_found",),
    ),
    Bug(
        "a database in use is emptied",
        "testing/streams/crashes.py",
        "crash_flow_everywhere",
        "await check_empty(session, runs.tables)",
        "pass",
        (f"{CRASHES}::test_what_cannot_be_told",),
    ),
    Bug(
        "the dead go on at their next statement",
        "testing/crashes/killable_replica.py",
        "KillableReplica._record_statement",
        "await_only(self._wait_if_dead(is_dead=True))",
        "pass",
        (f"{CRASHES}::test_the_dead_send_nothing",),
    ),
    Bug(
        "dead letters of messages depend on the layout",
        "streams/computing/compute.py",
        "_of_key",
        "if rows.is_sent",
        "if False",
        (f"{FURTHER}::test_a_further_stage_may_fold_and_set_aside",),
    ),
)
