"""Guards of how a page leads to what is to be done, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

STEPS = "tests/dashboard/test_next_steps.py"
LINK = f"{STEPS}::test_a_link_leads_to_the_row_that_is_named"
RENDERING = "dashboard/rendering.py"

NEXT_STEP_BUGS = (
    Bug(
        "a link leads to a key that a shell reads otherwise",
        RENDERING,
        "named_row",
        'row_command("explain", model, key) == found[0]',
        "True",
        (LINK,),
    ),
    Bug(
        "no link leads to a key that looks like an option",
        RENDERING,
        "named_row",
        "del words[0]",
        "pass",
        (LINK,),
    ),
    Bug(
        "another button is named than the command",
        RENDERING,
        "named_button",
        "_BUTTONS[found[1]]",
        '"unpark"',
        (f"{STEPS}::test_the_button_of_a_command_is_named",),
    ),
)
