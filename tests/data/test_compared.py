"""Data that are compared with what was read of them before."""

import pytest
import torch
from torch import nn

from slu.data import BatchReader, ComparedData, Content, ReadAhead, batch_count, batches, known_points
from slu.errors import ChangedDataError

CPU = torch.device("cpu")
POINTS = torch.arange(60.0).view(20, 3)


def compared(data, count=len) -> ComparedData:
    return ComparedData(data, BatchReader(), count)


def read(data: ComparedData) -> list[torch.Tensor]:
    return [batch.inputs for batch in batches(data, CPU)]


def test_the_batches_are_those_of_the_loader():
    for data in (POINTS, list(POINTS.split(6)), (POINTS, torch.arange(20))):
        expected = [batch.inputs for batch in batches(data, CPU)]
        assert all(map(torch.equal, read(compared(data)), expected))
        assert len(compared(data)) == batch_count(compared(data)) == len(expected)
        assert known_points(compared(data)) == 20


def test_a_source_of_batches_is_no_batch():
    """Or progress bars would have one step."""
    assert batch_count(ReadAhead(list(POINTS.split(6)))) == 4 == batch_count(ReadAhead(compared(list(POINTS.split(6)))))


def test_the_content_is_that_of_the_points_in_any_order_and_batches():
    targets, order = torch.arange(20), torch.randperm(20, generator=torch.Generator().manual_seed(0))
    wholes = set()
    for chosen in (torch.arange(20), order):
        for size in (1, 6, 20):
            data = compared([(POINTS[some], targets[some]) for some in chosen.split(size)])
            read(data)
            wholes.add(data.whole)
    (only,) = wholes
    assert only is not None and only.points == 20
    for other in ((POINTS, targets.flip(0)), (POINTS, None), (POINTS.flip(1), targets), (POINTS[:-1], targets[:-1])):
        data = compared([other])
        read(data)
        assert data.whole != only


def whole(batch) -> Content | None:
    data = compared([batch], lambda _: 20)
    read(data)
    return data.whole


def test_names_and_shapes_are_content():
    """The same numbers under other names, or in rows of another shape, are other data."""
    one, other = POINTS, POINTS + 100
    named = {"q": one, "k": other}
    assert whole(named) == whole({**named}) != whole({"k": one, "q": other})
    images = torch.randn(20, 1, 8, 8)
    shapes = [(20, 1, 8, 8), (20, 1, 4, 16), (20, 8, 8), (20, 64), (20, 64, 1)]
    assert len({whole(images.view(shape)) for shape in shapes}) == len(shapes)
    assert whole((one, torch.arange(20))) != whole((one, torch.arange(20)[:, None]))


def test_padding_at_the_end_is_none():
    tokens, longer = torch.arange(1, 61).view(20, 3), torch.zeros(20, 5, dtype=torch.int64)
    longer[:, :3] = tokens
    short, padded = ({"input_ids": each, "attention_mask": each.clamp(max=1)} for each in (tokens, longer))
    assert whole(short) == whole(padded)
    vectors = ({"x": torch.stack([each, each], -1), "lengths": torch.full((20,), 3)} for each in (tokens, longer))
    assert len({whole(each) for each in vectors}) == 1


@pytest.mark.parametrize("name", ["mask", None])
def test_zeros_at_the_end_are_compared_where_no_mask_tells_that_they_are_padding(name):
    """A network of sequences without a mask has other outputs then; batches of several lengths are not compared."""
    tokens = torch.arange(1, 61).view(20, 3)
    wider = nn.functional.pad(tokens, (0, 2))
    short, padded = ({name: each, "x": each[:, :1]} if name else each for each in (tokens, wider))
    assert whole(short) == whole(short)
    assert whole(short).differs(whole(padded)) and whole(short)[:3] == whole(padded)[:3]
    changed = compared([padded], lambda _: 20)
    changed.expect(whole(short))
    with pytest.raises(ChangedDataError, match="end in more or fewer zeros than in the run that began it"):
        read(changed)
    changed.expect(whole(short)._replace(lengths=None))  # of a file of before
    read(changed)
    mixed = compared([(tokens[:10], None), (wider[10:], None)])
    read(mixed)
    assert not any(mixed.whole.differs(whole(each)) or whole(each).differs(mixed.whole) for each in (tokens, wider))


def test_what_all_points_of_a_batch_share_is_told_by_the_model():
    """Where shapes differ it is asked for every batch, where they are one only for the first."""
    asked = []

    def count(inputs):
        asked.append(1)
        return len(inputs[0] if isinstance(inputs, tuple) else inputs)

    shared = torch.ones(7)
    data = compared([((some, shared), None) for some in POINTS.split(6)], count)
    read(data)
    assert len(asked) == 4 and data.whole is not None and data.whole.points == 20
    read(compared(list(POINTS.split(6)), count))
    assert len(asked) == 5


def test_a_later_pass_must_see_the_same_points():
    passes = [POINTS.split(6), POINTS.flip(0).split(7), (POINTS + 1).split(6)]

    class Loader:
        def __iter__(self):
            return iter(passes.pop(0))

    data = compared(Loader())
    read(data)
    read(data)
    with pytest.raises(ChangedDataError, match="20 points of the data differ in content from those of the first pass"):
        read(data)


def test_a_record_survives_a_file_to_the_bit():
    """Keys are unsigned here and signed there."""
    data = compared(list(POINTS.split(1)))
    read(data)
    record = data.first_batches(20)
    assert record.dtype == torch.int64 and record.shape == (20, 3) and bool((record[:, 1] < 0).any())
    assert data.first_batches(0).shape == (0, 3)
    again = compared(list(POINTS.split(1)))
    again.expect(data.whole, record)
    assert len(read(again)) == 20
    again.expect(Content(20, 0))
    with pytest.raises(ChangedDataError, match="differ in content from those of the run that began it"):
        read(again)


WORDS = [list(range(1, 2 + place % 4)) for place in range(20)]


def texts(size, *, left=False, order=range(20), length=None):
    """Batches of texts, each padded to its longest, or to a length."""
    for start in range(0, 20, size):
        rows = [WORDS[place] for place in order[start : start + size]]
        longest = length or max(map(len, rows))
        ends = [[0] * (longest - len(row)) for row in rows]
        tokens = torch.tensor([end + row if left else row + end for row, end in zip(rows, ends, strict=True)])
        yield {"input_ids": tokens, "attention_mask": tokens.clamp(max=1)}


def of_texts(data) -> ComparedData:
    return compared(data, lambda inputs: len(inputs["input_ids"]))


def test_padding_before_points_is_compared_and_not_how_much_of_it():
    """Of the whole, in any order and batches, of which some have texts of one length and no padding at all."""
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0)).tolist()
    for left in (False, True):
        wholes = set()
        for size, of, length in ((6, range(20), None), (2, order, None), (5, order, 9), (20, range(20), None)):
            data = of_texts(list(texts(size, left=left, order=of, length=length)))
            read(data)
            wholes.add(data.whole)
        (only,) = wholes
        assert only is not None and only.padded_before == left
    data = of_texts(list(texts(1, left=True)))
    read(data)
    assert data.whole is not None and not data.whole.padded_before, "one text at a time has no padding"
    assert Content(3, 5, 1).plus(Content(2, 7)) == Content(2, 7).plus(Content(3, 5, 1)) == Content(5, 12, 1)
    assert Content(3, 5, 1).plus(Content(2, 7, 2)) == Content(5, 12, 3)


@pytest.mark.parametrize(("here", "there"), [(a, b) for a in range(4) for b in range(4)])
def test_padding_before_the_inputs_of_an_encoder_and_of_a_decoder_are_told_apart(here, there):
    told = Content(9, 5, here).other_padding(Content(9, 5, there), "the data", "the run")
    differing = here ^ there
    if not differing:
        assert told is None
        return
    side = differing & 1 or 2
    some, none = ("here", "in the run") if here & side else ("in the run", "here")
    which = "" if side == 1 else " (their inputs of the decoder)"
    assert told is not None
    assert f"before some of the 9 points of the data{which} {some}, and before none {none}." in told


@pytest.mark.parametrize("left", [False, True])
def test_points_that_are_padded_on_the_other_side_are_refused(left):
    """Keys are the same, and outputs of a network with absolute positions are not."""
    passes = [list(texts(6, left=side, length=9)) for side in (left, left, not left)]

    class Loader:
        def __iter__(self):
            return iter(passes.pop(0))

    data = of_texts(Loader())
    read(data)
    read(data)
    some, none = ("in the first pass", "here") if left else ("here", "in the first pass")
    words = f"padding stands before some of the 20 points of the data {some}, and before none {none}. Pad on the same"
    with pytest.raises(ChangedDataError, match=words):
        read(data)
    earlier = of_texts(list(texts(6, left=left)))
    read(earlier)
    for size in (6, 2):
        again, seen = of_texts(list(texts(size, left=not left))), 0
        again.expect(None, earlier.first_batches(3))
        with pytest.raises(ChangedDataError, match=r"before some of the 6 points of the data (here|in the run that)"):
            for _ in again.checked_batches(CPU):
                seen += 1
        assert seen == 6 // size - 1
        again = of_texts(list(texts(size, left=left, length=7)))
        again.expect(earlier.whole, earlier.first_batches(3))
        assert len(read(again)) == len(range(0, 20, size))


@pytest.mark.parametrize("first", [0, 1, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_batches_that_meet_pass(first, size):
    earlier = compared(list(POINTS.split(6)))
    read(earlier)
    data = compared(list(POINTS.split(size)))
    data.expect(None, earlier.first_batches(first))
    assert sum(map(len, read(data))) == 20
    assert len(read(data)) == len(POINTS.split(size)), "only the next pass is in order"


def test_a_difference_is_seen_at_the_first_common_end():
    earlier = compared(list(POINTS.split(6)))
    read(earlier)
    other = POINTS.clone()
    other[7] += 1
    for size, message, seen in ((6, "batch 1 of the data has 6 points", 1), (2, "points 6 to 12 of the data", 5)):
        data, taken = compared(list(other.split(size))), 0
        data.expect(None, earlier.first_batches(3))
        with pytest.raises(ChangedDataError, match=message):
            for _ in data.checked_batches(CPU):
                taken += 1
        assert taken == seen
    data = compared(list(POINTS.split(5)))
    data.expect(None, earlier.first_batches(3))
    with pytest.raises(
        ChangedDataError, match="had read 18 points of the data, and batch 3 here goes on from point 15"
    ):
        read(data)
