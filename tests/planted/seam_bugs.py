"""Guards of what a host adds to every pipeline, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

GATES = "tests/pipelines/test_gates.py"
SURROUND = "tests/pipelines/test_surround.py"
SURROUNDINGS = "pipelines/host_code/surroundings.py"

SEAM_BUGS = (
    Bug(
        "claims do not ask the gates",
        "rows/eligibility.py",
        "EligibleParts.whole",
        ", *self.gates",
        "",
        (f"{GATES}::test_a_closed_gate_keeps_its_pipeline_alone",),
    ),
    Bug(
        "a gate is asked for another pipeline",
        "pipelines/host_code/seams.py",
        "Seams.conditions",
        "_condition(gate, leased, pipeline)",
        '_condition(gate, leased, "VolumePipeline")',
        (f"{GATES}::test_a_closed_gate_keeps_its_pipeline_alone",),
    ),
    Bug(
        "a gate may return anything",
        "pipelines/host_code/seams.py",
        "_condition",
        "if not isinstance(condition, ColumnElement):",
        "if False:",
        (f"{GATES}::test_a_gate_that_returns_no_condition_is_refused",),
    ),
    Bug(
        "what surrounds an attempt fails it when it is entered",
        SURROUNDINGS,
        "Surroundings.enter",
        "except BaseException:",
        "except ZeroDivisionError:",
        (f"{SURROUND}::test_one_that_fails_harms_no_outcome",),
    ),
    Bug(
        "what surrounds an attempt fails it when it is left",
        SURROUNDINGS,
        "Surroundings.leave",
        "except BaseException as raised:",
        "except ZeroDivisionError as raised:",
        (f"{SURROUND}::test_one_that_fails_harms_no_outcome",),
    ),
    Bug(
        "what surrounds an attempt does not see its error",
        "pipelines/host_code/call.py",
        "Attempt.run_here",
        "around.leave(error)",
        "around.leave(None)",
        (f"{SURROUND}::test_what_process_raises_is_seen",),
    ),
    Bug(
        "what surrounds attempts is left in the order in which it was entered",
        SURROUNDINGS,
        "Surroundings.leave",
        "reversed(self._entered)",
        "self._entered",
        (f"{SURROUND}::test_they_are_left_in_the_other_order",),
    ),
)
