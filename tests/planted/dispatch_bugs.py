"""The guards of the dispatch wing, and the tests that must notice when one is missing."""

from __future__ import annotations

from bug import Bug

ADMISSION = "tests/dispatch/test_admission.py"
DELIVERY = "tests/dispatch/test_delivery.py"
DRAIN = "tests/dispatch/test_drain.py"
ENGINES = "tests/dispatch/test_engines.py"
PLACING = "tests/dispatch/test_placing.py"
PROVISIONER = "tests/dispatch/test_provisioner.py"
SETTINGS = "tests/dispatch/test_settings.py"
STORY = "tests/dispatch/test_story.py"

DISPATCH_BUGS = (
    Bug(
        "a flood is taken whole",
        "dispatch/admission.py",
        "        if active - gives_way >= ceiling:\n",
        "        if False:\n",
        (f"{STORY}::test_a_flood_is_shed_and_what_was_admitted_is_done",),
    ),
    Bug(
        "the ceiling is one too high",
        "dispatch/admission.py",
        "        if active - gives_way >= ceiling:\n",
        "        if active - gives_way > ceiling:\n",
        (f"{ADMISSION}::test_the_ceiling_is_told_before_anything_is_written[sqlite-True]",),
    ),
    Bug(
        "a client that polls its own job is sent away",
        "dispatch/admission.py",
        "not is_stale and self._settings.attach_at_ceiling:\n",
        "not is_stale and False:\n",
        (f"{ADMISSION}::test_the_ceiling_is_told_before_anything_is_written[sqlite-True]",),
    ),
    Bug(
        "one key is taken twice",
        "dispatch/migrations.py",
        '"dedup_key", unique=True, **active)',
        '"dedup_key", "id", unique=True, **active)',
        (f"{ADMISSION}::test_fifty_at_once_make_one_row[sqlite]",),
    ),
    Bug(
        "a settled key is taken for ever",
        "dispatch/states.py",
        "ACTIVE: Final = (PENDING, RUNNING)\n",
        "ACTIVE: Final = (PENDING, RUNNING, COMPLETED)\n",
        (f"{ADMISSION}::test_a_settled_key_is_free_again[sqlite]",),
    ),
    Bug(
        "work that is under way is failed by who asks for it",
        "dispatch/admission.py",
        "and_(is_free(self._leased), or_(abandoned, overdue, parked))",
        "or_(abandoned, overdue, parked, model.status == RUNNING)",
        (f"{ADMISSION}::test_a_row_that_is_held_or_will_be_recovered_is_attached_to[sqlite-held]",),
    ),
    Bug(
        "a stale row keeps its key",
        "dispatch/admission.py",
        "        return func.coalesce(and_(is_free(self._leased), or_(abandoned, overdue, parked)), false())\n",
        "        return false()\n",
        (f"{ADMISSION}::test_a_stale_row_gives_way",),
    ),
    Bug(
        "nobody is told what took a stale row's place",
        "dispatch/admission.py",
        "                    await self._supersede(session, row, made)\n",
        "                    pass\n",
        (f"{ADMISSION}::test_a_stale_row_gives_way",),
    ),
    Bug(
        "work is taken by a replica that ends",
        "dispatch/pipeline.py",
        '        if self.state in ("stopping", "stopped"):\n',
        "        if False:\n",
        (f"{ADMISSION}::test_nothing_is_taken_while_the_replica_drains[sqlite]",),
    ),
    Bug(
        "a row is running before a worker accepts",
        "dispatch/delivery.py",
        "        async with AsyncExitStack() as stack:\n",
        '        await self._note({"status": RUNNING}, unless_changed={"status": PENDING})\n'
        "        async with AsyncExitStack() as stack:\n",
        (f"{DELIVERY}::test_an_offer_that_was_refused_never_shows_as_running",),
    ),
    Bug(
        "a row is running when the handler first speaks",
        "dispatch/engines/stream.py",
        "            return Heartbeat()\n        if self._coming is None:\n",
        "        if self._coming is None:\n",
        (f"{DELIVERY}::test_it_runs_from_the_moment_a_worker_accepts",),
    ),
    Bug(
        "what somebody else settled is overwritten",
        "dispatch/delivery.py",
        '        return Apply(values, unless_changed=["status"], **more)\n',
        "        return Apply(values, **more)\n",
        (f"{DELIVERY}::test_a_row_that_somebody_else_settled_is_left_alone",),
    ),
    Bug(
        "a lost attempt brings back what was settled",
        "dispatch/delivery.py",
        'unless_changed={"status": self._row.status})',
        "unless_changed={})",
        (f"{DELIVERY}::test_a_lost_attempt_does_not_bring_back_what_somebody_settled",),
    ),
    Bug(
        "an overflow is offered again at once",
        "dispatch/delivery.py",
        "        return Retry(after=rest, error=error_of(CAPACITY, nobody.message))\n",
        "        return Retry(after=1, error=error_of(CAPACITY, nobody.message))\n",
        (f"{DELIVERY}::test_an_overflow_rests_for_the_interval_and_some",),
    ),
    Bug(
        "all overflows come back at the same moment",
        "dispatch/delivery.py",
        "settings.retry_interval + random.random() * settings.jitter\n",
        "settings.retry_interval\n",
        (f"{DELIVERY}::test_an_overflow_rests_for_the_interval_and_some",),
    ),
    Bug(
        "there is no deadline",
        "dispatch/delivery.py",
        "        if self._waited() >= self._means.settings.dispatch_deadline:\n",
        "        if False:\n",
        (f"{DELIVERY}::test_recovery_does_not_reset_the_deadline",),
    ),
    Bug(
        "a row that kills its workers is tried for ever",
        "dispatch/delivery.py",
        "        if losses >= self._means.settings.max_losses:\n",
        "        if False:\n",
        (f"{DELIVERY}::test_workers_that_die_cost_attempts_up_to_a_limit",),
    ),
    Bug(
        "a silent worker is waited for",
        "dispatch/delivery.py",
        "plain_event(await hear(events, within_s=silence_s))",
        "plain_event(await anext(events))",
        (f"{DELIVERY}::test_a_silent_worker_is_given_up",),
    ),
    Bug(
        "an attempt has no time limit",
        "dispatch/delivery.py",
        "asyncio.timeout(self._means.settings.time_limit.total_seconds())\n",
        "asyncio.timeout(None)\n",
        (f"{DELIVERY}::test_the_time_limit_ends_an_attempt",),
    ),
    Bug(
        "stages are forgotten",
        "dispatch/delivery.py",
        '        await self._note({"stages": stages}, unless_changed={"status": RUNNING})\n',
        "        pass\n",
        (f"{DELIVERY}::test_stages_are_recorded_at_once_and_skipped_later",),
    ),
    Bug(
        "every word of progress is written",
        "dispatch/progress.py",
        "        if self._text is None or monotonic() < self._next_at:\n",
        "        if self._text is None:\n",
        (f"{DELIVERY}::test_progress_is_shown_and_not_written_for_every_word",),
    ),
    Bug(
        "scratch folders stay",
        "dispatch/scratch.py",
        "            await asyncio.shield(self._in_thread(partial(_remove, folder)))\n",
        "            pass\n",
        (f"{DELIVERY}::test_each_attempt_has_a_folder_of_its_own_which_is_gone_afterwards",),
    ),
    Bug(
        "clients read about our disks",
        "dispatch/texts.py",
        '    told = f"{kind}: {without_paths(str(text)[:READ_CHARS_MAX])}"\n',
        '    told = f"{kind}: {text}"\n',
        (f"{DELIVERY}::test_a_failure_is_final_and_tells_no_paths",),
    ),
    Bug(
        "rows rest while workers are idle",
        "dispatch/pipeline.py",
        "        if places := placing.room.look(placing.workers()):\n",
        "        if places := 0:\n",
        (f"{STORY}::test_fifteen_of_three_drain_without_a_rest",),
    ),
    Bug(
        "what a shutdown cut short shows as running",
        "dispatch/delivery.py",
        '            return self._apply({"status": PENDING}, after=0)\n',
        "            raise\n",
        (f"{DRAIN}::test_what_is_not_done_by_then_is_done_elsewhere_at_once",),
    ),
    Bug(
        "one busy worker keeps all work waiting",
        "dispatch/placing.py",
        "            except WorkerBusy:\n                continue\n",
        "            except WorkerBusy:\n                break\n",
        (f"{PLACING}::test_a_refusal_goes_on_to_the_next",),
    ),
    Bug(
        "a worker that is gone is asked each time",
        "dispatch/placing.py",
        "                self._evict(worker, gone)\n",
        "                pass\n",
        (f"{PLACING}::test_a_worker_that_is_gone_is_not_asked_for_a_while",),
    ),
    Bug(
        "a provisioner is asked for one key many times",
        "dispatch/provisioner.py",
        "        if key in self._in_flight or key in self._expected or is_full or at_cap:\n",
        "        if is_full or at_cap:\n",
        (f"{PROVISIONER}::test_calls_in_flight_are_bounded",),
    ),
    Bug(
        "a flood starts a thousand machines",
        "dispatch/provisioner.py",
        " or is_full or at_cap:\n",
        " or at_cap:\n",
        (f"{PROVISIONER}::test_calls_in_flight_are_bounded",),
    ),
    Bug(
        "the fleet has no cap",
        "dispatch/provisioner.py",
        " or is_full or at_cap:\n",
        " or is_full:\n",
        (f"{PROVISIONER}::test_the_fleet_has_a_cap",),
    ),
    Bug(
        "a late beat looks like a death",
        "dispatch/settings.py",
        "            base.lock_timeout <= 2 * own.heartbeat,\n",
        "            False,\n",
        (f"{SETTINGS}::test_what_cannot_be_is_refused_at_once",),
    ),
    Bug(
        "a worker takes what it has no room for",
        "dispatch/engines/local.py",
        "        if self._refuses(BackpressureContext(self._active[worker], task)):\n",
        "        if False:\n",
        (f"{ENGINES}::test_a_worker_takes_no_more_than_it_may[loop]",),
    ),
    Bug(
        "an attempt that was never listened to costs a worker",
        "dispatch/engines/stream.py",
        "            self._closing.add_done_callback(lambda _: self._on_end())\n",
        "            pass\n",
        (f"{ENGINES}::test_an_attempt_that_was_never_listened_to_leaves_its_worker_free[loop]",),
    ),
    Bug(
        "long work looks like a death",
        "dispatch/engines/stream.py",
        "        await asyncio.wait({self._coming}, timeout=self._beat_s)\n",
        "        await asyncio.wait({self._coming})\n",
        (f"{ENGINES}::test_it_beats_while_the_handler_says_nothing[loop]",),
    ),
    Bug(
        "a frozen child beats on",
        "dispatch/engines/process.py",
        "    beats_itself: ClassVar[bool] = True\n",
        "    beats_itself: ClassVar[bool] = False\n",
        (f"{ENGINES}::test_a_process_that_stands_still_beats_no_more",),
    ),
    Bug(
        "a process that died is a handler that failed",
        "dispatch/engines/process.py",
        '                raise WorkerGone(worker, "its process died") from broken\n',
        '                yield Failed("internal", str(broken))\n',
        (f"{ENGINES}::test_a_process_that_is_killed_is_noticed",),
    ),
    Bug(
        "a worker is given away before its row has ended",
        "dispatch/delivery.py",
        "                self._item.when_settled = partial(self._close, stack.pop_all())\n",
        "                pass\n",
        ("tests/dispatch/test_delivery_apart.py::test_a_worker_is_held_until_its_row_has_ended",),
    ),
    Bug(
        "an attempt that still runs is left for later",
        "dispatch/delivery.py",
        "            if self._has_ended:\n",
        "            if True:\n",
        ("tests/dispatch/test_delivery_apart.py::test_an_attempt_that_is_given_up_ends_before_the_next_begins",),
    ),
)
