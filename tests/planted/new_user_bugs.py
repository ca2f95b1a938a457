"""Guards of what a person meets on the first day, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

FLOWS = ("tests/insight/test_explain_wings.py::test_what_is_to_be_done_about_a_flow_can_be_typed",)

NEW_USER_BUGS = (
    Bug(
        "a small table of ours is said to lack an index",
        "insight/checking/pipeline_view.py",
        "PipelineView._index",
        "if self.plan.wanted",
        "if True",
        ("tests/insight/test_explain_wings.py::test_a_row_of_a_flow_says_how_far_it_is",),
    ),
    Bug(
        "a shell takes the name of a pipeline apart",
        "insight/shown.py",
        "pipeline_command",
        "typed_word(pipeline)",
        "pipeline",
        FLOWS,
    ),
    Bug(
        "a person is to register what no Python makes",
        "insight/shown.py",
        "made_by",
        "if pipeline.isidentifier()",
        "if pipeline",
        FLOWS,
    ),
    Bug(
        "a row that is held passes for a database that is away",
        "cli/answering.py",
        "_code_of",
        "if isinstance(error, LockWaitTimeout):",
        "if False:",
        ("tests/cli/test_plan.py::test_a_row_that_is_held_is_no_outage",),
    ),
    Bug(
        "a host is to add an index to a table of ours",
        "insight/checking/checkup.py",
        "_claim_findings",
        "not is_ours and ",
        "",
        ("tests/insight/test_check_wings.py::test_a_host_with_streams",),
    ),
)
