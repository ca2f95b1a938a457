"""The guards around one dispatched attempt: what it writes, what it leaves, what room it finds; and the tests that miss them."""

from __future__ import annotations

from bug import Bug

APART = "tests/dispatch/test_delivery_apart.py"
CANCELLED = "tests/dispatch/test_cancelled.py"
CAPACITY = "tests/dispatch/test_capacity.py"
CRASHES = "tests/dispatch/test_crashes.py"
ENDS = "tests/dispatch/test_ends.py"
NOTE = "tests/leases/test_note.py"
PLACING = "tests/dispatch/test_placing.py"
PROVISIONER = "tests/dispatch/test_provisioner.py"
QUEUE = "tests/pipelines/test_item_queue.py"
SILENCE = "tests/dispatch/test_silence.py"

OTHER_REASONS = f"{CAPACITY}::test_rows_that_rest_for_another_reason_rest_on"

ATTEMPT_BUGS = (
    Bug(
        "a loop that stood still takes its workers for dead",
        "dispatch/silence.py",
        "            await asyncio.wait({coming}, timeout=CATCH_UP_S)\n",
        "            await asyncio.wait({coming}, timeout=0)\n",
        (f"{SILENCE}::test_a_loop_that_was_blocked_listens_once_more",),
    ),
    Bug(
        "a loop that stood still twice takes its workers for dead",
        "dispatch/silence.py",
        " and monotonic() - began_at < 2 * CATCH_UP_S:\n",
        ":\n",
        (f"{SILENCE}::test_a_loop_that_is_blocked_again_while_it_catches_up",),
    ),
    Bug(
        "somebody listens on after a cancellation",
        "dispatch/silence.py",
        "        if not coming.done():\n            coming.cancel()\n",
        "        if False:\n            coming.cancel()\n",
        (f"{SILENCE}::test_who_is_cancelled_listens_no_more",),
    ),
    Bug(
        "room that came during the offers is forgotten",
        "dispatch/capacity.py",
        "        self._places = min(self._places, self._freed - since)\n",
        "        self._places = 0\n",
        (f"{PLACING}::test_room_that_is_freed_during_the_offers_is_not_forgotten",),
    ),
    Bug(
        "room that was refused is remembered",
        "dispatch/placing.py",
        "        self.room.refused(since=freed_before)\n",
        "",
        (f"{PLACING}::test_room_that_is_freed_during_the_offers_is_not_forgotten",),
    ),
    Bug(
        "room is counted anew at each look",
        "dispatch/capacity.py",
        "        self._workers = here\n",
        "",
        (f"{CAPACITY}::test_room_is_counted_once_and_bounded",),
    ),
    Bug(
        "room has no bound",
        "dispatch/capacity.py",
        "        self._places = min(ROOM_MAX, self._places + places)\n",
        "        self._places += places\n",
        (f"{CAPACITY}::test_room_is_counted_once_and_bounded",),
    ),
    Bug(
        "the rest after a loss is cut short",
        "dispatch/capacity.py",
        '        model.last_error.startswith(f"{CAPACITY}:"),\n',
        "",
        (OTHER_REASONS,),
    ),
    Bug(
        "a held row is brought forward",
        "dispatch/capacity.py",
        "        is_free(leased),\n",
        "",
        (OTHER_REASONS,),
    ),
    Bug(
        "a parked row is brought forward",
        "dispatch/capacity.py",
        "        model.parked_at.is_(None),\n",
        "",
        (OTHER_REASONS,),
    ),
    Bug(
        "the latest submission is brought forward first",
        "dispatch/capacity.py",
        "order_by(model.submitted_at, leased.key)",
        "order_by(model.submitted_at.desc(), leased.key)",
        (f"{CAPACITY}::test_the_oldest_submissions_first_and_no_more_than_there_is_room_for",),
    ),
    Bug(
        "a full replica leases ahead",
        "dispatch/pipeline.py",
        "    queue_upper_limit_factor: float = 0.0\n",
        "    queue_upper_limit_factor: float = 1.0\n",
        (f"{APART}::test_a_replica_leases_no_more_than_it_can_begin",),
    ),
    Bug(
        "a worker that is gone still counts as idle",
        "pipelines/item_queue.py",
        "            self._idle -= 1\n",
        "            pass\n",
        (f"{QUEUE}::test_a_queue_that_holds_nothing_ahead_has_room_for_those_who_wait",),
    ),
    Bug(
        "nobody says that a worker is idle",
        "pipelines/item_queue.py",
        "                if not self.holds_ahead:\n                    self.on_room()\n",
        "",
        (f"{QUEUE}::test_a_queue_that_holds_nothing_ahead_has_room_for_those_who_wait",),
    ),
    Bug(
        "machines on their way do not count",
        "dispatch/provisioner.py",
        "<= len(here) + len(self._expected)\n",
        "<= len(here) + len(self._in_flight)\n",
        (f"{PROVISIONER}::test_machines_that_are_on_their_way_count",),
    ),
    Bug(
        "a machine that never came is expected for ever",
        "dispatch/provisioner.py",
        " if until > now]\n",
        "]\n",
        (f"{PROVISIONER}::test_machines_that_are_on_their_way_count",),
    ),
    Bug(
        "a key is asked for while its machine is on its way",
        "dispatch/provisioner.py",
        " or key in self._expected or",
        " or",
        (f"{PROVISIONER}::test_a_key_is_asked_for_once_until_its_machine_comes",),
    ),
    Bug(
        "a machine that was refused is expected",
        "dispatch/provisioner.py",
        "            self._expected.pop(key, None)\n            logger",
        "            logger",
        (f"{PROVISIONER}::test_one_that_said_no_is_asked_again",),
    ),
    Bug(
        "a slip that shows when nobody accepts fails the row",
        "dispatch/delivery.py",
        "            except Exception as error:\n                # Of this replica",
        "            except OSError as error:\n                # Of this replica",
        (f"{APART}::test_a_provisioner_that_cannot_count_fails_no_rows",),
    ),
    Bug(
        "what was noted is not known to who is cancelled",
        "dispatch/notes.py",
        'await finish(self._try(Note(item, values, unless_changed), tries=tries), purpose="write a note")',
        "await self._try(Note(item, values, unless_changed), tries=tries)",
        (f"{CANCELLED}::test_at_each_await_of_an_attempt",),
    ),
    Bug(
        "a note whose answer was lost is taken for one that was refused",
        "dispatch/notes.py",
        '        if written is None and tries and "status" in note.values:\n',
        "        if False:\n",
        (f"{CRASHES}::test_cut_at_every_boundary_of_an_attempt",),
    ),
    Bug(
        "a note that an outage interrupts is not written again",
        "dispatch/notes.py",
        "                if not is_transient(error) or not item.is_trusted():\n",
        "                if True:\n",
        (f"{CRASHES}::test_cut_at_every_boundary_of_an_attempt",),
    ),
    Bug(
        "a note needs no token",
        "leases/note.py",
        '        .where(token == bindparam("rowlock_token", note.item.lock_token, type_=token.type))\n',
        "",
        (f"{NOTE}::test_under_another_token_nothing_is_noted",),
    ),
    Bug(
        "a note is written to every row of its token",
        "leases/note.py",
        '        .where(leased.key == bindparam("rowlock_key", note.item.id, type_=leased.key.type))\n',
        "",
        (f"{NOTE}::test_under_another_key_nothing_is_noted",),
    ),
    Bug(
        "a note is written over what somebody decided",
        "leases/note.py",
        "        .where(*(still(column, value) for column, value in column_values(leased, note.unless_changed).items()))\n",
        "",
        (f"{NOTE}::test_of_notes_that_go_together_each_has_its_own_guard",),
    ),
    Bug(
        "a note is written when trust is over",
        "leases/note.py",
        "    if not note.item.is_trusted():\n",
        "    if False:\n",
        (f"{NOTE}::test_trust_is_asked_as_late_as_can_be",),
    ),
    Bug(
        "a folder that was being made stays",
        "dispatch/scratch.py",
        "            for folder in made:\n                _remove(folder)\n            raise\n",
        "            raise\n",
        (f"{CANCELLED}::test_a_folder_that_is_being_made",),
    ),
    Bug(
        "the end does not wait for what ended last",
        "pipelines/run.py",
        "        await self._background_ends(monotonic() + self._last_wait_s())\n",
        "",
        (f"{APART}::test_the_end_waits_for_attempts_to_be_closed",),
    ),
    Bug(
        "who is cancelled twice gives the row away under the attempt",
        "dispatch/delivery.py",
        '    await finish(close(), purpose="end an attempt")\n',
        "    await events.aclose()\n",
        (f"{APART}::test_who_ends_late_gives_its_worker_back",),
    ),
    Bug(
        "a silent handler never hears that it was cancelled",
        "dispatch/delivery.py",
        "        if monotonic() >= self._looks_at:\n",
        "        if False:\n",
        (f"{APART}::test_a_handler_that_says_nothing_is_cancelled_with_its_row",),
    ),
    Bug(
        "an outage cancels what is silent",
        "dispatch/notes.py",
        "            if not is_transient(error):\n                raise\n            logger.info",
        "            if True:\n                raise\n            logger.info",
        (f"{APART}::test_a_database_that_is_away_cancels_nothing",),
    ),
    Bug(
        "who is cancelled twice listens on",
        "dispatch/silence.py",
        '            await finish(_wait(coming), purpose="hear no more of an attempt")\n',
        "            await _wait(coming)\n",
        (f"{SILENCE}::test_who_is_cancelled_again_and_again_listens_no_more",),
    ),
    Bug(
        "an engine that cannot close fails the row",
        "dispatch/delivery.py",
        "        except Exception:\n            # Of the engine, and not of the row.\n",
        "        except ZeroDivisionError:\n            # Of the engine, and not of the row.\n",
        (f"{ENDS}::test_an_engine_that_cannot_close_fails_no_rows",),
    ),
    Bug(
        "a row is held for ever by a handler that has no end",
        "dispatch/delivery.py",
        '        await finish(_wait(closing, timeout_s=END_S_MAX), purpose="end an attempt")\n',
        '        await finish(_wait(closing), purpose="end an attempt")\n',
        (f"{ENDS}::test_a_handler_that_has_no_end_is_failed_once",),
    ),
    Bug(
        "a first loss rests as long as many overflows",
        "dispatch/delivery.py",
        "Retry(after=self._rest(losses), error=",
        "Retry(error=",
        (f"{ENDS}::test_a_loss_rests_by_the_losses",),
    ),
    Bug(
        "what the database refuses is done again",
        "dispatch/pipeline.py",
        "        return Delivery(self._means, item).failed_by(error)\n",
        "        return super().on_refused(item, error)\n",
        (f"{ENDS}::test_whatever_the_database_refuses_fails_the_row",),
    ),
    Bug(
        "a migration that has not run fails every row",
        "dispatch/pipeline.py",
        "        if isinstance(error, TransactionTimeout) or is_of_the_schema(error):\n",
        "        if isinstance(error, TransactionTimeout):\n",
        (f"{ENDS}::test_a_table_that_is_not_migrated_yet_fails_no_rows",),
    ),
    Bug(
        "a pipeline whose workers are all busy looks after nothing",
        "dispatch/pipeline.py",
        "min(WORKERS_MAX, self.workers_num + len(engine.workers()))",
        "max(self.workers_num, len(engine.workers()))",
        (f"{ENDS}::test_what_waits_for_a_large_fleet_has_its_deadline",),
    ),
    Bug(
        "a fetch leases all there is",
        "dispatch/pipeline.py",
        "super().fetch_once(min(limit, LEASES_PER_TICK_MAX))",
        "super().fetch_once(limit)",
        (f"{ENDS}::test_a_fetch_leases_64_at_most_and_the_next_one_comes_at_once",),
    ),
    Bug(
        "after 64 leases the fetcher rests",
        "dispatch/pipeline.py",
        "        if claimed == LEASES_PER_TICK_MAX:\n",
        "        if False:\n",
        (f"{ENDS}::test_a_fetch_leases_64_at_most_and_the_next_one_comes_at_once",),
    ),
    Bug(
        "folders wait for threads of the host",
        "dispatch/scratch.py",
        "run_in_executor(self._threads, function)",
        "run_in_executor(None, function)",
        (f"{ENDS}::test_folders_do_not_wait_for_threads_of_the_host",),
    ),
    Bug(
        "a worker that was out of sight is taken for a new machine",
        "dispatch/provisioner.py",
        "        for oldest in list(self._seen)",
        "        for oldest in [gone for gone in self._seen if gone not in workers] or list(self._seen)",
        (f"{PROVISIONER}::test_a_worker_that_was_out_of_sight_is_no_new_machine",),
    ),
    Bug(
        "what the host has in hand is thrown away",
        "dispatch/states.py",
        "    return session.sync_session.autoflush or not any(isinstance(each, model) for each in session.dirty)\n",
        "    return True\n",
        ("tests/dispatch/test_cancellation.py::test_what_the_host_has_not_written_yet_is_kept",),
    ),
    Bug(
        "a late result leaves no word",
        "pipelines/settler.py",
        "                self._note_dropped(item, written)\n                if written is Written.ROBBED:\n",
        "                self._note_stale(item, written.value)\n                if written is Written.ROBBED:\n",
        (f"{APART}::test_a_late_result_leaves_a_word_in_the_log",),
    ),
)
