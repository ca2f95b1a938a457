"""The guards by which idle pipelines poll together, and each finds its work as soon as it would by itself."""

from __future__ import annotations

from bug import Bug

GROUPS = "tests/pipelines/test_poll_groups.py"
POLL = "tests/leases/test_poll.py"
ODD = f"{GROUPS}::test_who_cannot_be_polled_for_costs_the_others_nothing"

POLL_BUGS = (
    Bug(
        "a poll that found a row tells nobody",
        "pipelines/poll_groups.py",
        "one.found_something()",
        "one.found_nothing(delay_s)",
        (f"{GROUPS}::test_what_nobody_hinted_is_found_within_the_longest_rest",),
    ),
    Bug(
        "a poll is for one pipeline alone",
        "pipelines/poll_groups.py",
        "                one.found_nothing(delay_s)",
        "                member.found_nothing(delay_s)",
        (f"{GROUPS}::test_idle_pipelines_send_one_statement_for_all",),
    ),
    Bug(
        "a poll that failed is tried again at once",
        "pipelines/poll_groups.py",
        "            self._rests_until = monotonic() + REST_AFTER_FAILURE_S\n",
        "",
        (f"{GROUPS}::test_where_polls_fail_each_fetches",),
    ),
    Bug(
        "a poll that failed ends the loop's round",
        "pipelines/poll_groups.py",
        "        except Exception:\n            # A fetch of its own",
        "        except KeyError:\n            # A fetch of its own",
        (f"{GROUPS}::test_where_polls_fail_each_fetches",),
    ),
    Bug(
        "a poll that hangs holds up the others",
        "pipelines/poll_groups.py",
        "timeout=POLL_TIMEOUT)",
        "timeout=timedelta(minutes=5))",
        (f"{GROUPS}::test_a_poll_that_hangs_holds_the_others_up_for_seconds_at_most",),
    ),
    Bug(
        "a condition that changes has the statement built anew each time",
        "pipelines/claim_orders.py",
        "return order if last is self._last else None",
        "return order",
        (ODD,),
    ),
    Bug(
        "a condition that raises is everybody's failure",
        "pipelines/poll_groups.py",
        "        except Exception:  # noqa: BLE001 - host code: its own fetch fails, and tells of it\n",
        "        except KeyError:\n",
        (ODD,),
    ),
    Bug(
        "nothing is swept while all are idle",
        "pipelines/fetcher.py",
        "            and monotonic() < self._sweeps_at\n",
        "",
        (f"{GROUPS}::test_what_was_left_behind_is_swept_while_all_are_idle",),
    ),
    Bug(
        "a fetcher of the host's own is passed over",
        "pipelines/fetcher.py",
        " and type(self).fetch_once is Fetcher.fetch_once:",
        ":",
        (f"{GROUPS}::test_a_fetcher_of_the_hosts_own_fetches",),
    ),
    Bug(
        "a hint waits for the end of a poll",
        "pipelines/fetcher.py",
        "while not (polling.done() or self._hinted or self._stopped):",
        "while not (polling.done() or self._stopped):",
        (f"{GROUPS}::test_a_hint_during_a_poll_is_followed",),
    ),
    Bug(
        "who has stopped is polled for",
        "pipelines/fetcher.py",
        "            self.context.poll_groups.leave(self)\n",
        "            pass\n",
        (f"{GROUPS}::test_who_has_stopped_is_polled_for_no_more",),
    ),
    Bug(
        "a group has no bound",
        "pipelines/poll_groups.py",
        "if len(group.members) < MEMBERS_MAX and",
        "if True and",
        (f"{GROUPS}::test_groups_are_of_bounded_size",),
    ),
    Bug(
        "groups are of several databases",
        "pipelines/poll_groups.py",
        "(bind_of(self._session_factory(), leased).engine, fetch_delays_s)",
        "fetch_delays_s",
        (f"{GROUPS}::test_groups_are_of_one_database_and_of_one_delay",),
    ),
    Bug(
        "a poll is in no order",
        "leases/poll.py",
        ".order_by(*order.oldest_first)",
        "",
        (f"{POLL}::test_the_plan_is_that_of_the_claim",),
    ),
    Bug(
        "a poll waits for SQLite's write lock",
        "leases/poll.py",
        "writes=False, ",
        "",
        (f"{POLL}::test_a_poll_waits_for_no_writer",),
    ),
    Bug(
        "a poll is a transaction",
        "leases/poll.py",
        ", alone=True",
        "",
        (f"{POLL}::test_a_poll_is_one_round_trip",),
    ),
    Bug(
        "parameters of one name are shared by all pipelines of a statement",
        "rows/parameter_names.py",
        "    if not any(_is_named(element) for element in iterate(condition)):\n",
        "    if True:\n",
        (
            f"{POLL}::test_orders_with_parameters_of_one_name_find_their_own_rows",
            "tests/pipelines/test_siblings.py::test_parameters_of_one_name_are_each_pipelines_own",
        ),
    ),
    Bug(
        "a condition of the host's keeps its names",
        "pipelines/claim_orders.py",
        "    return with_names_of_its_own(condition)",
        "    return condition",
        (f"{GROUPS}::test_parameters_of_one_name_are_each_pipelines_own",),
    ),
    Bug(
        "what a lock is declared on keeps its names",
        "pipelines/lock_graph.py",
        "None if on is None else with_names_of_its_own(on)",
        "on",
        ("tests/pipelines/test_lock_graph.py::test_what_two_locks_are_declared_on_keeps_its_values",),
    ),
    Bug(
        "groups are of several contexts",
        "pipelines/poll_groups.py",
        "            return bool(self.variables == variables)\n",
        "            return True\n",
        (f"{GROUPS}::test_who_was_started_in_another_context_is_polled_for_in_it",),
    ),
)
