"""Guards of what hosts test their flows with: without them a flow that is wrong would pass, or one
that is right would not.
"""

from __future__ import annotations

from bug import Bug

FURTHER = "tests/testing/streams/test_further_stages.py"

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
)
