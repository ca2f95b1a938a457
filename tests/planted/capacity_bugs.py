"""The guards of what a replica knows of idle workers, and of the rows that it brings forward for
them.
"""

from __future__ import annotations

from bug import Bug

CAPACITY = "tests/dispatch/test_capacity.py"
PLACING = "tests/dispatch/test_placement.py"
STORY = "tests/dispatch/test_story.py"
OTHER_REASONS = f"{CAPACITY}::test_rows_that_rest_for_another_reason_rest_on"

CAPACITY_BUGS = (
    Bug(
        "room that came during the offers is forgotten",
        "dispatch/delivering/capacity.py",
        "Capacity.refused",
        "min(self._places, self._freed - since)",
        "0",
        (f"{PLACING}::test_room_that_is_freed_during_the_offers_is_not_forgotten",),
    ),
    Bug(
        "room that was refused is remembered",
        "dispatch/delivering/placement.py",
        "Placement.place",
        "        self.capacity.refused(task.id, since=freed_before)\n",
        "",
        (f"{PLACING}::test_room_that_is_freed_during_the_offers_is_not_forgotten",),
    ),
    Bug(
        "a row that is brought forward uses two places",
        "dispatch/delivering/capacity.py",
        "Capacity.keep_for",
        "self._kept_until |= dict.fromkeys(keys, monotonic() + KEPT_S)",
        "for key in keys:\n            self.occupied(key)",
        (
            f"{CAPACITY}::test_a_row_that_was_brought_forward_uses_one_place",
            f"{STORY}::test_a_row_that_comes_to_rest_beside_an_idle_worker_is_brought_forward",
        ),
    ),
    Bug(
        "a place is kept for a row that was refused",
        "dispatch/delivering/capacity.py",
        "Capacity.refused",
        "_kept_until.pop(key, None)\n        self.",
        "",
        (f"{CAPACITY}::test_a_row_that_was_brought_forward_uses_one_place",),
    ),
    Bug(
        "a place is kept for ever",
        "dispatch/delivering/capacity.py",
        "Capacity.look",
        " if until > now",
        "",
        (f"{CAPACITY}::test_a_place_is_kept_for_a_while",),
    ),
    Bug(
        "room is counted anew at each look",
        "dispatch/delivering/capacity.py",
        "Capacity.look",
        "        self._workers = here\n",
        "",
        (f"{CAPACITY}::test_room_is_counted_once_and_bounded",),
    ),
    Bug(
        "room has no bound",
        "dispatch/delivering/capacity.py",
        "Capacity._add",
        "= min(max(ROOM_MAX, len(self._workers)), self._places + places)",
        "+= places",
        (
            f"{CAPACITY}::test_room_is_counted_once_and_bounded",
            f"{CAPACITY}::test_room_of_many_workers_is_given_bit_by_bit",
        ),
    ),
    Bug(
        "workers beyond what one fetch brings stay idle",
        "dispatch/delivering/capacity.py",
        "Capacity._add",
        "max(ROOM_MAX, len(self._workers))",
        "ROOM_MAX",
        (f"{STORY}::test_a_hundred_workers_that_come_together_all_find_work",),
    ),
    Bug(
        "room of many workers is given at once",
        "dispatch/delivering/capacity.py",
        "Capacity.look",
        ", max",
        " * 1000, max",
        (f"{CAPACITY}::test_room_of_many_workers_is_given_bit_by_bit",),
    ),
    Bug(
        "the rest after a loss is cut short",
        "dispatch/delivering/capacity.py",
        "bring_forward",
        '        model.last_error.startswith(f"{CAPACITY}:"),\n',
        "",
        (OTHER_REASONS,),
    ),
    Bug(
        "a held row is brought forward",
        "dispatch/delivering/capacity.py",
        "bring_forward",
        "        is_free(leased),\n",
        "",
        (OTHER_REASONS,),
    ),
    Bug(
        "a parked row is brought forward",
        "dispatch/delivering/capacity.py",
        "bring_forward",
        "        model.parked_at.is_(None),\n",
        "",
        (OTHER_REASONS,),
    ),
    Bug(
        "the latest submission is brought forward first",
        "dispatch/delivering/capacity.py",
        "bring_forward",
        ", leased.",
        ".desc(), leased.",
        (f"{CAPACITY}::test_the_oldest_submissions_first_and_no_more_than_there_is_room_for",),
    ),
)
