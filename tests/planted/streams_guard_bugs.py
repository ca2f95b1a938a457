"""Guards of shards whose absence no run of the simulation and no other test has found; and the
tests that miss them.
"""

from __future__ import annotations

from bug import Bug

STEERING = "tests/streams/shards/test_steering.py"
OUTDATED = "tests/streams/exchange/test_outdated.py"
ANEW = "tests/streams/walk/test_begun_anew.py"
SLOW = "tests/streams/walk/test_slow_shards.py"
SCALING = "tests/streams/walk/test_scaling.py"
CREATION = "tests/streams/walk/test_creation.py"

OUTDATED_BUGS = (
    Bug(
        "who leaves within a replay writes the states of an earlier step",
        "streams/shards/steering.py",
        "steered",
        "max(earliest_end(state, is_inside=is_inside), state.written)",
        "earliest_end(state, is_inside=is_inside)",
        (
            f"{STEERING}::test_who_leaves_does_again_what_is_written",
            f"{OUTDATED}::test_who_leaves_within_a_replay_does_it_to_its_end",
        ),
    ),
    Bug(
        "a shard is split at a step that it is not at",
        "streams/shards/resharding.py",
        "Resharding._fenced",
        'self._leased.column("step"): shard.step,',
        "",
        (f"{OUTDATED}::test_no_split_of_what_is_known_wrongly",),
    ),
    Bug(
        "a shard is split with other states than it has",
        "streams/shards/resharding.py",
        "Resharding._fenced",
        'self._leased.column("version"): shard.version,',
        "",
        (f"{OUTDATED}::test_no_split_of_what_is_known_wrongly",),
    ),
    Bug(
        "a half whose answer was lost waits to be found",
        "streams/shards/dividing.py",
        "Dividing.write_and_divide",
        "finally:",
        "except KeyError:",
        (f"{OUTDATED}::test_a_half_is_hinted_though_the_answer_is_lost",),
    ),
    Bug(
        "messages are sent of a step that the shard is not at",
        "streams/exchanging/table_exchange.py",
        "TableExchange._write",
        "unless_changed={self._step: shard.step}",
        "unless_changed={}",
        (f"{OUTDATED}::test_nothing_is_sent_of_another_step",),
    ),
    Bug(
        "shards begin anew for ever whose states cannot be written",
        "streams/shards/dividing.py",
        "Dividing._write",
        "self._writer.memory_from = 1 + max(shard.step for shard in together)",
        "pass",
        (f"{OUTDATED}::test_states_that_cannot_be_written_yet",),
    ),
    Bug(
        "a shard is worked on whose lease is not trusted",
        "streams/shards/rounds.py",
        "FlowRounds._drop_lost",
        "not shard.item.is_trusted()",
        "False",
        (f"{OUTDATED}::test_who_does_not_trust_its_lease_does_nothing",),
    ),
)

BEGUN_ANEW_BUGS = (
    Bug(
        "a shard that fails has the snapshot of a later step",
        "streams/shards/writing.py",
        "StepWriter._write_of",
        " < did.step",
        "",
        (f"{ANEW}::test_a_snapshot_behind_the_step_that_fails",),
    ),
    Bug(
        "the steps of a lease that was lost go on beside those of its next one",
        "streams/shards/runner.py",
        "FlowRunner.hold",
        "former.drop()",
        "pass",
        (f"{ANEW}::test_a_shard_that_was_claimed_here_again",),
    ),
    Bug(
        "who holds a lease that was lost waits for ever",
        "streams/shards/runner.py",
        "FlowRunner.hold",
        "former.leave(Apply())",
        "pass",
        (f"{ANEW}::test_a_shard_that_was_claimed_here_again",),
    ),
    Bug(
        "all cuts of a flow are kept in memory",
        "streams/cutting/flow_view.py",
        "KnownFlow.look",
        "self.forget(below=first - 1)",
        "pass",
        (f"{ANEW}::test_cuts_that_no_shard_needs_are_forgotten",),
    ),
    Bug(
        "a step is done again over the states that it has left",
        "streams/shards/runner.py",
        "FlowRunner._round",
        "shard.drop()",
        "pass",
        (f"{ANEW}::test_states_that_were_not_written_are_read_again",),
    ),
)

HELD_BACK_BUGS = (
    Bug(
        "a half that nobody holds is not noticed without a hint",
        "streams/cutting/flow_view.py",
        "KnownFlow._moment_of",
        "row.shards",
        "1",
        (f"{SCALING}::test_a_half_is_noticed_without_a_hint",),
    ),
    Bug(
        "a shard that is free holds back the cut",
        "streams/cutting/cutter.py",
        "_clock_and_slowest",
        """shards.c.lock_token.is_not(None),
        shards.c.lock_expires_at > database_instant(),
        shards.c.parked_at.is_(None),""",
        "",
        (f"{SLOW}::test_a_parked_shard_does_not_hold_back_the_cut",),
    ),
    Bug(
        "a parked shard holds back the cut",
        "streams/cutting/cutter.py",
        "_clock_and_slowest",
        "shards.c.parked_at.is_(None),",
        "",
        (f"{SLOW}::test_a_parked_shard_does_not_hold_back_the_cut",),
    ),
    Bug(
        "a slow shard of another replica is not seen",
        "streams/cutting/cutter.py",
        "Cutter.cut",
        "seen.slowest is not None",
        "False",
        (f"{SLOW}::test_a_slow_shard_makes_steps_longer",),
    ),
    Bug(
        "a flow that lacks shards is claimed",
        "streams/shards/replicas.py",
        "Replicas.look",
        "check_layout(program.name, ranges)",
        "pass",
        (f"{CREATION}::test_missing_shards_are_an_error",),
    ),
)
