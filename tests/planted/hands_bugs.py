"""The guards around an item's way from claim to settlement, and around the host's callbacks; and the tests that miss them."""

from __future__ import annotations

from bug import Bug

BATCHER = "tests/pipelines/test_batcher.py"
DECISIONS = "tests/pipelines/test_decisions.py"
ESCAPES = "tests/pipelines/test_escapes.py"
EVENTS = "tests/ground/test_events.py"
RELAYS = "tests/pipelines/test_hinter_relays.py"
STRAYS = "tests/pipelines/test_strays.py"
SUPERVISOR = "tests/pipelines/test_supervisor.py"
SURPLUS = "tests/pipelines/test_fetcher_surplus.py"
VARIABLES = "tests/pipelines/test_context_variables.py"

IS_NO_STRAY = f"{STRAYS}::test_what_is_queued_worked_on_or_settled_is_no_stray"
GIVEN_BACK = f"{STRAYS}::test_an_item_that_nobody_has_is_given_back"

STRAY_BUGS = (
    Bug(
        "an item that nobody has is renewed for ever",
        "pipelines/heartbeater.py",
        "        self.before_renewal()\n",
        "        pass\n",
        (GIVEN_BACK,),
    ),
    Bug(
        "strays are looked for in the heartbeat thread",
        "pipelines/heartbeater.py",
        "            self._on_host(self._check)\n",
        "            self._check()\n",
        (f"{STRAYS}::test_strays_are_looked_for_on_the_hosts_loop",),
    ),
    Bug(
        "a loop that stands still is asked again and again for strays",
        "pipelines/heartbeater.py",
        "            self._is_check_on_its_way = True\n",
        "            pass\n",
        (f"{STRAYS}::test_strays_are_looked_for_on_the_hosts_loop",),
    ),
    Bug(
        "strays are looked for once",
        "pipelines/heartbeater.py",
        "        self._is_check_on_its_way = False\n",
        "        pass\n",
        (f"{STRAYS}::test_strays_are_looked_for_on_the_hosts_loop",),
    ),
    Bug(
        "an idle pipeline wakes the loop at every beat",
        "pipelines/heartbeater.py",
        "        if self._tracked and not self._is_check_on_its_way:\n",
        "        if not self._is_check_on_its_way:\n",
        (f"{STRAYS}::test_strays_are_looked_for_on_the_hosts_loop",),
    ),
    Bug(
        "a queued item is a stray",
        "pipelines/run.py",
        "if not (item in queued or ",
        "if not (",
        (IS_NO_STRAY,),
    ),
    Bug(
        "an item in hand is a stray",
        "pipelines/run.py",
        "item in in_hand or item in self.settler",
        "item in self.settler",
        (IS_NO_STRAY,),
    ),
    Bug(
        "an item is a stray while a worker of the host's prepares for it",
        "pipelines/pool.py",
        "        self.context.in_hand.add(item)\n",
        "",
        (f"{ESCAPES}::test_an_item_that_a_worker_of_the_hosts_loses_comes_back",),
    ),
    Bug(
        "an item that a worker lost counts as in hand",
        "pipelines/pool.py",
        "        self.context.in_hand.discard(item)\n        self._over(worker, asyncio",
        "        self._over(worker, asyncio",
        (f"{ESCAPES}::test_an_item_that_a_worker_of_the_hosts_loses_comes_back",),
    ),
    Bug(
        "an item that is being settled is a stray",
        "pipelines/run.py",
        "item in in_hand or item in self.settler",
        "item in in_hand",
        (IS_NO_STRAY,),
    ),
    Bug(
        "a drain leaves strays leased",
        "pipelines/run.py",
        "        await self._supervisor.stop()\n        self.release_strays()\n",
        "        await self._supervisor.stop()\n",
        (f"{STRAYS}::test_a_drain_gives_strays_back",),
    ),
    Bug(
        "the process of a stray goes on",
        "pipelines/attempt.py",
        "            self.end(why)\n            self._waiter",
        "            self._waiter",
        (f"{STRAYS}::test_a_stray_is_not_given_back_under_the_hands_of_its_process",),
    ),
)

ESCAPE_BUGS = (
    Bug(
        "only a cancelled worker gives its row back",
        "pipelines/worker.py",
        "        except BaseException as error:\n            # A bug, or",
        "        except asyncio.CancelledError as error:\n            # A bug, or",
        (f"{ESCAPES}::test_whatever_escapes_from_a_worker_gives_its_item_back",),
    ),
    Bug(
        "an outcome that could not be handed in is settled for ever",
        "pipelines/settler.py",
        "            self._pending.discard(item)\n            raise\n",
        "            raise\n",
        (f"{ESCAPES}::test_what_cannot_be_handed_over_is_given_back",),
    ),
    Bug(
        "a settlement ends only if it has begun",
        "pipelines/settler.py",
        "                    return\n            self._finish(item)\n",
        "                    return\n            if not task.cancelled():\n                self._finish(item)\n",
        (f"{ESCAPES}::test_a_settlement_that_is_cancelled_before_it_began_has_ended",),
    ),
    Bug(
        "an exit out of a background task ends the event loop",
        "pipelines/context.py",
        "        except BaseException as error:\n",
        "        except Exception as error:\n",
        (f"{ESCAPES}::test_a_settlement_that_fails_ends_nothing_but_itself",),
    ),
    Bug(
        "a lost lease is told of before the work of the others is ended",
        "pipelines/heartbeater.py",
        "                attempt.lose()\n        for item in lost:\n            self._tell_lost(item)\n",
        "                attempt.lose()\n            self._tell_lost(item)\n",
        (f"{ESCAPES}::test_all_lost_leases_are_lost_before_any_is_told_of",),
    ),
    Bug(
        "a renewal that fails is told of before the others are tried",
        "pipelines/heartbeater.py",
        "                failures.append(error)\n",
        "                self._note_failure(error)\n",
        (f"{ESCAPES}::test_a_renewal_that_fails_keeps_no_other_from_being_renewed",),
    ),
    Bug(
        "a round in which a renewal failed counts as a success",
        "pipelines/heartbeater.py",
        "        if not failures:\n",
        "        if True:\n            failures, failed = [], failures\n",
        (f"{ESCAPES}::test_a_renewal_that_fails_keeps_no_other_from_being_renewed",),
    ),
    Bug(
        "an exit out of a loop ends the event loop",
        "pipelines/supervisor.py",
        "    except SystemExit as error:\n",
        "    except MemoryError as error:\n",
        (f"{SUPERVISOR}::test_an_exit_out_of_a_loop_is_its_death",),
    ),
    Bug(
        "a loop whose death cannot be told is gone",
        "pipelines/supervisor.py",
        "        with suppress(BaseException):\n",
        "        if True:\n",
        (f"{SUPERVISOR}::test_a_loop_is_replaced_whoever_cannot_be_told",),
    ),
    Bug(
        "an outcome that raises an exit ends the event loop",
        "pipelines/decisions.py",
        "    except BaseException as raised:",
        "    except Exception as raised:",
        (f"{DECISIONS}::test_what_an_outcome_raises_is_the_rows_failure",),
    ),
)

CALLBACK_BUGS = (
    Bug(
        "one bad wake keeps the others asleep",
        "pipelines/hinter.py",
        "        except BaseException as error:  # noqa: BLE001 - a callback of the host's may",
        "        except ZeroDivisionError as error:  # noqa: BLE001 - a callback of the host's may",
        (f"{RELAYS}::test_a_bad_callback_keeps_no_hint_from_the_others",),
    ),
    Bug(
        "a bad wake is told of before the others are called",
        "pipelines/hinter.py",
        "            failures.append(error)\n",
        '            failures.append(error)\n            logger.error("told at once")\n',
        (f"{RELAYS}::test_all_are_hinted_before_a_failure_is_told",),
    ),
    Bug(
        "a bad answer keeps the others from theirs",
        "pipelines/batcher.py",
        "        except BaseException:\n            # The others",
        "        except ZeroDivisionError:\n            # The others",
        (f"{BATCHER}::test_an_answer_that_fails_keeps_nobody_from_theirs",),
    ),
    Bug(
        "an outcome that was written is settled for ever if it cannot be told",
        "pipelines/settler.py",
        "            finally:\n                self._finish(item)\n",
        "            finally:\n                pass\n            self._finish(item)\n",
        (f"{RELAYS}::test_a_hint_that_fails_stops_no_pipeline",),
    ),
    Bug(
        "a listener too many is an error",
        "events.py",
        "        _warn_of_leak()\n",
        "        raise ValueError\n",
        (f"{EVENTS}::test_a_leak_of_listeners_is_warned_of_once",),
    ),
    Bug(
        "a leak of listeners is warned of at each of them",
        "events.py",
        "@cache\ndef _warn_of_leak",
        "def _warn_of_leak",
        (f"{EVENTS}::test_a_leak_of_listeners_is_warned_of_once",),
    ),
    Bug(
        "a plain function knows no context variables",
        "pipelines/attempt.py",
        "copied(variables.run(call))",
        "copied(call())",
        (VARIABLES,),
    ),
)

SURPLUS_BUGS = (
    Bug(
        "rows beyond the room stay leased",
        "pipelines/fetcher.py",
        "        await give_back(self.context, items)\n        logger",
        "        logger",
        (f"{SURPLUS}::test_what_a_fetch_brings_beyond_the_room_is_given_back",),
    ),
    Bug(
        "a queue that shrank has less than no room",
        "pipelines/item_queue.py",
        "max(0, self.capacity - len(self._heap))",
        "self.capacity - len(self._heap)",
        (f"{SURPLUS}::test_a_queue_that_shrinks_while_rows_are_claimed_strands_none",),
    ),
    Bug(
        "a fetch that brought too much counts as one that found little",
        "pipelines/fetcher.py",
        "delay_s = 0.0 if claimed >= limit else",
        "delay_s = 0.0 if claimed == limit else",
        (f"{SURPLUS}::test_a_greedy_fetcher_still_serves_all_rows",),
    ),
)
