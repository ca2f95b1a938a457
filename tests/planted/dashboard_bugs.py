"""Guards of the dashboard, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

GUARDS = "tests/dashboard/test_guards.py"
PAGES = "tests/dashboard/test_pages.py"
LIVE = "tests/dashboard/test_live.py"
NEEDS = f"{GUARDS}::test_an_action_needs_everything"
ORIGINS = f"{GUARDS}::test_forms_come_from_this_origin"
LIES = f"{GUARDS}::test_what_is_no_viewer_lets_nobody_through"
DRAWING = "dashboard/drawing/graph_drawing.py"
PLACES = "test_values_go_to_the_right_and_no_line_runs_below_a_box"
PLACED = f"tests/dashboard/test_graph_drawing.py::{PLACES}"
ACTING = "dashboard/acting.py"
GATE = "dashboard/guarding/authorizing.py"
ORIGIN = "dashboard/guarding/origins.py"

DASHBOARD_BUGS = (
    Bug(
        "a slow browser is an error of the host's",
        "dashboard/live.py",
        "LiveResponse.__call__",
        "suppress(SendTimeoutError)",
        "suppress()",
        (f"{LIVE}::test_a_browser_that_takes_nothing_is_no_error",),
    ),
    Bug(
        "a page shows what the host has raised",
        "dashboard/guarding/refusals.py",
        "_of_ours",
        "if isinstance(error, HostCodeError):",
        "if False:",
        (f"{PAGES}::test_what_the_host_raises_is_in_the_log_alone",),
    ),
    Bug(
        "who may look may act",
        ACTING,
        "_signed",
        "if viewer is None:",
        "viewer = viewer or visit.viewer\n    if viewer is None:",
        (NEEDS,),
    ),
    Bug(
        "a form of another origin is acted upon",
        ACTING,
        "_signed",
        "not is_same_origin(visit.request)",
        "False",
        (NEEDS, ORIGINS),
    ),
    Bug(
        "a form needs no token",
        ACTING,
        "_signed",
        'not is_token_of(visit.request, fields.get("token"))',
        "False",
        (NEEDS,),
    ),
    Bug(
        "a form needs no reason",
        ACTING,
        "_signed",
        "if not reason:",
        "reason = reason or 'none'\n    if not reason:",
        (NEEDS,),
    ),
    Bug(
        "an address that acts may be opened",
        "dashboard/dashboard.py",
        "",
        'method="POST"',
        'method="GET"',
        (NEEDS,),
    ),
    Bug(
        "a page is shown before its viewer is known",
        "dashboard/dashboard.py",
        "Dashboard._page",
        "if viewer is None:",
        "if viewer is None and request.method not in {'GET'}:",
        (f"{GUARDS}::test_looking_is_not_acting", LIES),
    ),
    Bug(
        "an empty token is that of a browser without one",
        ORIGIN,
        "is_token_of",
        "return token is not None and hmac.compare_digest(token.encode()",
        'return hmac.compare_digest((token or "").encode()',
        (f"{GUARDS}::test_a_token_is_kept_for_its_origin_alone",),
    ),
    Bug(
        "browsers hide where a form comes from",
        ORIGIN,
        "",
        '"referrer-policy": "same-origin"',
        '"referrer-policy": "no-referrer"',
        (ORIGINS,),
    ),
    Bug(
        "what a host returns is a viewer",
        GATE,
        "Gatekeeper._judged",
        "isinstance(answer, Viewer) and is_name(answer.name)",
        "answer",
        (LIES,),
    ),
    Bug(
        "texts of rows become script",
        "dashboard/rendering.py",
        "environment",
        "autoescape=True",
        "autoescape=False",
        (f"{PAGES}::test_hostile_texts_are_shown_as_typed",),
    ),
    Bug(
        "keys of any kind stand in the path",
        "dashboard/addresses.py",
        "PageAddresses.row",
        "_PLAIN.fullmatch(row_id)",
        "True",
        (f"{PAGES}::test_hostile_texts_are_shown_as_typed",),
    ),
    Bug(
        "a forged lease is an error of the program",
        "dashboard/guarding/forms.py",
        "seen_lease",
        "leased.as_token(token)",
        "pass",
        (f"{PAGES}::test_refused_actions_are_pages",),
    ),
    Bug(
        "a page shows what was before the action",
        ACTING,
        "act",
        "visit.recent.forget()",
        "pass",
        (f"{PAGES}::test_actions_are_done",),
    ),
    Bug(
        "a page calls itself live while the database is away",
        "dashboard/live.py",
        "live_events",
        'yield ServerSentEvent(event="stale", data=refusal_of(error).sentence)',
        'yield ServerSentEvent(event="beat", data="")',
        (f"{LIVE}::test_an_outage_is_told_and_its_end",),
    ),
    Bug(
        "streams have no bound",
        "dashboard/live.py",
        "LiveStreams.is_full",
        ">= STREAMS_MAX",
        "> 10 * STREAMS_MAX",
        (f"{LIVE}::test_a_hundred_at_once_are_bounded",),
    ),
    Bug(
        "a stream that has ended is counted on",
        "dashboard/live.py",
        "LiveResponse.__call__",
        "self._streams.leave(self._topic)",
        "pass",
        (f"{LIVE}::test_a_hundred_at_once_are_bounded",),
    ),
    Bug(
        "a page with a form reloads by itself",
        "dashboard/visits.py",
        "PageVisit.page",
        "live is not None and not has_form",
        "live is not None",
        (f"{LIVE}::test_the_next_page_reloads_itself",),
    ),
    Bug(
        "each viewer asks the database",
        "dashboard/recent.py",
        "RecentAnswers.get",
        "answer is None or not self._is_good(answer)",
        "True",
        (f"{LIVE}::test_what_many_ask_for_is_asked_once",),
    ),
    Bug(
        "a line of a graph runs below the boxes that it passes",
        DRAWING,
        "_way",
        "range(begin + 1, end)",
        "range(0)",
        (PLACED,),
    ),
    Bug(
        "an operator is drawn beside what feeds it",
        DRAWING,
        "depths_of",
        "depths[number] + 1",
        "1",
        (PLACED,),
    ),
    Bug(
        "a line slopes before its column has ended",
        DRAWING,
        "_drawn",
        "way[0].end < way[0].column_end",
        "False",
        (PLACED,),
    ),
    Bug(
        "the lanes of an operator with a long name are cut off",
        DRAWING,
        "_title",
        "TITLE_CHARS_MAX - len(lanes)",
        "TITLE_CHARS_MAX",
        ("tests/dashboard/test_graph_drawing.py::test_what_stands_in_a_box",),
    ),
    Bug(
        "a graph is drawn however large it is",
        DRAWING,
        "drawing_of",
        "picture = _bounded(picture)",
        "",
        ("tests/dashboard/test_graph_drawing.py::test_a_drawing_has_an_end",),
    ),
)
