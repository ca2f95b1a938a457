"""Parcels: both ways give the same events, and each message is there once, whatever the layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowlock.streams import exchanging as parcels
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.hashing import BucketRange, bucket_of
from rowlock.streams.computing.rows import Messages, SentMessages, SourceRows
from rowlock.streams.exchanging import Parcel, ReceivingStage, addressed, arrived, packed, unpacked
from rowlock.streams.shards.layout import even_layout

CODEC = Codec(str)
SENT = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.text(min_size=1, max_size=2), st.text(max_size=3)),
    max_size=30,
)
"""Messages: the key for which each was sent, its own key, and its text."""
SHARDS = st.sampled_from([1, 2, 4, 16])


def stage(*, is_batch: bool) -> ReceivingStage:
    return ReceivingStage(1, "second", CODEC, [is_batch])


def parcels_of(
    sent: Sequence[tuple[str, str, str]], layout: Sequence[BucketRange], *, is_batch: bool
) -> dict[int, list[Parcel]]:
    """Return what each shard sends, the keys as their events come."""
    found: dict[int, list[Parcel]] = {}
    for own in layout:
        here = [one for one in sent if bucket_of(one[0]) in own]
        messages = Messages()
        for sender in dict.fromkeys(one[0] for one in here):
            of_sender = [one for one in here if one[0] == sender]
            texts = CODEC.encode_many([text for _, _, text in of_sender])
            messages.add(None if is_batch else sender, [key for _, key, _ in of_sender], texts)
        found[own.lo] = [{0: messages.ordered(is_batch)}] if messages.keys else [{}]
    return found


def through_table(
    sent: dict[int, list[Parcel]], own: BucketRange, *, at: ReceivingStage
) -> list[SourceRows]:
    """Return what one shard gets of rows that are written and read again."""
    read = {
        lo: [
            unpacked(packed(part))
            for parcel in of_sender
            for to, part in addressed(parcel)
            if to.lo < own.hi and to.hi > own.lo
        ]
        for lo, of_sender in sent.items()
    }
    return arrived(read, [own], at)[0]


@pytest.mark.parametrize("is_batch", [False, True])
@settings(deadline=None)
@given(SENT, SHARDS, SHARDS, st.integers(1, 80))
def test_both_ways_and_all_layouts_give_the_same(
    is_batch: bool,
    sent: list[tuple[str, str, str]],
    senders: int,
    receivers: int,
    parcel_bytes: int,
) -> None:
    """A step would come out otherwise with other shards, or where its messages are recorded; or a
    message for a range that was split would be lost.
    """
    sent = [one for one in sent if "\0" not in one[1] and is_text(one[1])]
    at = stage(is_batch=is_batch)
    layout = even_layout(receivers)
    by_shards = parcels_of(sent, even_layout(senders), is_batch=is_batch)
    in_memory = arrived(by_shards, layout, at)
    of_one = arrived(parcels_of(sent, even_layout(1), is_batch=is_batch), layout, at)
    assert in_memory == of_one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parcels, "PARCEL_BYTES", parcel_bytes)
        assert [through_table(by_shards, own, at=at) for own in layout] == in_memory
    found = Counter(
        (key, text)
        for events in in_memory
        for rows in events
        for key, text in zip(rows.keys, CODEC.decode_many(list(rows.raw)), strict=True)
    )
    assert found == Counter((key, text) for _, key, text in sent)


def is_text(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def test_messages_of_one_key_come_as_they_were_sent() -> None:
    """A handler by key could not rely on what it has sent to one key."""
    messages = Messages()
    messages.add("b", ["x", "y"], ["1", "2"])
    messages.add("a", ["x"], ["3"])
    messages.add("b", ["x"], ["4"])
    layout = even_layout(1)
    parcel = {0: messages.ordered(is_batch=False)}
    ((rows,),) = arrived({0: [parcel]}, layout, stage(is_batch=False))
    own = [raw for key, raw in zip(rows.keys, rows.raw, strict=True) if key == "x"]
    assert [raw for raw in own if raw != "3"] == ["1", "4"]
    first = min("ab", key=lambda key: (bucket_of(key), key))
    assert own == (["3", "1", "4"] if first == "a" else ["1", "4", "3"])


def test_messages_of_a_batch_come_by_their_texts() -> None:
    """Their order would be that of the shards that sent them."""
    messages = Messages()
    messages.add(None, ["x", "x", "w"], ["3", "1", "9"])
    ((rows,),) = arrived(
        {0: [{0: messages.ordered(is_batch=True)}]}, even_layout(1), stage(is_batch=True)
    )
    assert list(zip(rows.keys, rows.raw, strict=True)) == [("w", "9"), ("x", "1"), ("x", "3")]


def test_a_small_parcel_is_one_row() -> None:
    """A step of few messages would write as many rows as there are pairs of shards."""
    few = SentMessages(["a", "b"], [bucket_of("a"), bucket_of("b")], ["1", "2"])
    assert len(addressed({})) == 1
    assert len(addressed({0: few})) == 1
    many = SentMessages(few.keys * 5000, few.buckets * 5000, ['"text of a message"'] * 10_000)
    rows = addressed({0: many})
    assert len(rows) == 4
    assert sum(to.width for to, _ in rows) == 1 << 16
