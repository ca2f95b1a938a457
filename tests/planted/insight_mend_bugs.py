"""Guards of what an explanation, a check and a status say of hosts that are out of the ordinary."""

from __future__ import annotations

from bug import Bug

LITERALS = "tests/insight/test_values_without_literals.py"

INSIGHT_MEND_BUGS = (
    Bug(
        "a plan is asked for with literals alone",
        "insight/checking/claim_plan.py",
        "claim_queries",
        "yield query",
        "return",
        (f"{LITERALS}::test_a_literal_of_another_type_refuses_no_claim",),
    ),
    Bug(
        "a value without a literal costs the answer",
        "insight/checking/claim_plan.py",
        "claim_queries",
        "suppress(Exception)",
        "suppress()",
        (f"{LITERALS}::test_a_value_without_a_literal_is_bound",),
    ),
)
