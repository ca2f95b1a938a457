"""Guards of `top`, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

TOP = "tests/cli/test_top.py"
WALK = f"{TOP}::test_a_walk_over_every_key_and_size"
ENDS = f"{TOP}::test_the_terminal_is_as_before_whatever_ends_it"

LONGEST = "tests/insight/test_longest_at_work.py"
HANGS = (f"{LONGEST}::test_a_row_that_hangs_is_told_before_work_without_an_end",)

TOP_BUGS = (
    Bug(
        "shards leave no room in a report for a row that hangs",
        "insight/observing/report.py",
        "report_of",
        "(view.pipeline in endless, view.state",
        "(view.state",
        HANGS,
    ),
    Bug(
        "top shows work without an end before a row that hangs",
        "cli/top/view.py",
        "longest_at_work",
        "(_is_endless(one[1], one[2]), ",
        "(False, ",
        HANGS,
    ),
    Bug(
        "a pipeline does not say that its work has no end",
        "insight/observing/report.py",
        "work_report",
        "{ENDLESS: True} if is_endless else {}",
        "{}",
        (f"{LONGEST}::test_a_pipeline_without_an_end_says_so",),
    ),
    Bug(
        "Ctrl-C is no key of top",
        "cli/top/screen.py",
        "TopApp",
        'Binding("ctrl+c", f"leave({INTERRUPTED})", priority=True)',
        'Binding("ctrl+c", "leave(0)")',
        (f"{ENDS}[\\x03-130]",),
    ),
    Bug(
        "top does not hear of signals",
        "cli/top/command.py",
        "_signals_end",
        "loop.add_signal_handler(number, end, ENDED_BY[name])",
        "loop.add_signal_handler(number, bool)",
        (ENDS,),
    ),
    Bug(
        "an error in the drawing is printed with all variables",
        "cli/top/screen.py",
        "TopApp._handle_exception",
        "self.exit()",
        "super()._handle_exception(error)",
        (f"{TOP}::test_an_error_in_the_drawing_is_one_line_and_restores_the_terminal",),
    ),
    Bug(
        "there is no way back from an explanation",
        "cli/top/texts.py",
        "TextScreen",
        'Binding("escape", "back", "back")',
        'Binding("f9", "back", "back")',
        (WALK,),
    ),
    Bug(
        "a failed look ends all looking",
        "cli/top/looking.py",
        "Looker._look",
        "failed = replace(self.seen, error=message_of(error), failing_since=since)",
        "raise",
        (f"{TOP}::test_a_database_that_goes_away_and_comes_back",),
    ),
    Bug(
        "a key that is pressed during a look asks again behind it, as often as it was pressed",
        "cli/top/looking.py",
        "Looker.hurry",
        "self._wanted.set()",
        "asyncio.get_running_loop().create_task(self._look(0.0))",
        (f"{TOP}::test_a_slow_database_is_asked_one_question_at_a_time",),
    ),
    Bug(
        "keys of parked rows reach the terminal as they are",
        "cli/top/view.py",
        "_parked",
        "shown(key, 40) for key in keys[:NAMED_MAX]",
        "key for key in keys[:NAMED_MAX]",
        (f"{TOP}::test_nothing_of_a_row_is_a_control_byte",),
    ),
    Bug(
        "texts of rows are markup",
        "cli/top/screen.py",
        "LookScreen._fill",
        'Option(Text(line.text, no_wrap=True, overflow="ellipsis"))',
        "Option(Text.from_markup(line.text))",
        (f"{TOP}::test_nothing_of_a_row_is_a_control_byte",),
    ),
    Bug(
        "a small terminal shows a torn picture",
        "cli/top/screen.py",
        "LookScreen.on_resize",
        "width < view.WIDTH_MIN or height < view.HEIGHT_MIN",
        "False",
        (WALK,),
    ),
    Bug(
        "top has the size that a shell has exported",
        "cli/top/command.py",
        "run",
        "os.environ.pop(name, None)",
        "pass",
        (WALK,),
    ),
    Bug(
        "top draws into a pipe",
        "cli/top/command.py",
        "why_not",
        "if not is_terminal or",
        "if",
        (f"{TOP}::test_without_a_terminal_it_says_what_to_type",),
    ),
    Bug(
        "of two quick changes of the window the last is lost",
        "cli/top/screen.py",
        "TopApp._heed_size",
        "size != self.size",
        "False",
        (f"{TOP}::test_a_size_that_no_signal_told_is_seen",),
    ),
)
