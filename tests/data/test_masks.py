"""Padding is found by the names of the arguments that inputs are for, in a dict or by position."""

from itertools import product

import pytest
import torch
from torch import nn

from slu import SLU, Checkpoint
from slu.data import batches
from slu.data.fingerprint import example_keys
from slu.data.masks import COUNTS, padded_before, position_mask, without_padding
from slu.data.reading import BatchReader
from slu.data.signature import Signature
from slu.errors import ChangedDataError, MismatchError

SEQUENCE = torch.arange(12.0).reshape(2, 3, 2)
PADDING = torch.tensor([[False, True, True], [False, False, False]])
LABELS = torch.tensor([0, 1])


class Masked(nn.Module):
    def forward(self, sequence, padding_mask):
        return sequence.sum(1)


def read(*parts):
    (batch,) = batches(parts, None, reader=BatchReader(Signature.of(Masked())))
    return batch


def test_a_mask_by_position():
    inputs = read(SEQUENCE, PADDING, LABELS).inputs
    assert torch.equal(position_mask(inputs), ~PADDING)
    assert position_mask((SEQUENCE, PADDING)) is None, "without names nothing says that it is one"


def test_what_stands_at_padding_changes_no_key():
    rubbish = torch.where(PADDING[..., None], 7.0, SEQUENCE)
    one, other = read(SEQUENCE, PADDING, LABELS), read(rubbish, PADDING, LABELS)
    assert torch.equal(example_keys(one.inputs, 2), example_keys(other.inputs, 2))
    pair, other_pair = (one.inputs, one.targets), (other.inputs, other.targets)
    assert torch.equal(example_keys(pair, 2), example_keys(other_pair, 2))
    assert not torch.equal(example_keys(one.inputs, 2), example_keys(read(SEQUENCE + 1, PADDING, LABELS).inputs, 2))


def test_padding_is_replaced_by_zeros_and_the_mask_by_ones_where_a_position_counts():
    shown = without_padding(read(SEQUENCE, PADDING, LABELS).inputs)
    assert not bool(shown["sequence"][PADDING].any())
    assert torch.equal(shown["sequence"][~PADDING], SEQUENCE[~PADDING])
    assert torch.equal(shown["padding_mask"], ~PADDING)


def test_the_positions_of_outputs_are_those_of_the_decoder():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    inputs = {"attention_mask": torch.ones(2, 3, dtype=torch.long), "decoder_input_ids": mask}
    assert position_mask(inputs) is None, "the mask of the encoder is none of theirs, though it has their shape"
    assert torch.equal(position_mask({**inputs, "decoder_attention_mask": mask}), mask.bool())
    assert torch.equal(position_mask({"attention_mask": mask}), mask.bool())
    assert torch.equal(position_mask({"src_key_padding_mask": mask == 1, "tgt_key_padding_mask": mask == 0}), mask == 1)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (torch.tensor([[1, 1, 0], [0, 0, 0]]), [[True, True, False], [False, False, False]]),
        (torch.tensor([[1.0, 1.0, 0.0]]), [[True, True, False]]),
        (torch.tensor([[0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]]), [[True, True, False], [True, True, True]]),
    ],
)
def test_masks_of_numbers_are_ones_where_a_position_counts_or_are_added(mask, expected):
    assert position_mask({"attention_mask": mask}).tolist() == expected


ENCODED, DECODED = ((5, 6), (7, 8, 9)), ((2,), (3, 4))


def padded(rows, length, rubbish, *, left=False):
    """Tokens (b, length) and the mask, 1 where one counts."""
    tokens, mask = torch.full((len(rows), length), rubbish), torch.zeros(len(rows), length, dtype=torch.int64)
    for place, row in enumerate(rows):
        some = slice(length - len(row), length) if left else slice(len(row))
        tokens[place, some], mask[place, some] = torch.tensor(row), 1
    return tokens, mask


def two_sided(names, encoded, decoded):
    """Arguments of an encoder and a decoder, as transformers or as torch names them."""
    (source, counts), (target, decoder_counts) = encoded, decoded
    if names == "torch":
        masks = {"src_key_padding_mask": counts == 0, "tgt_key_padding_mask": decoder_counts == 0}
        return {"src": source, "tgt": target, **masks}
    masks = {"attention_mask": counts, "decoder_attention_mask": decoder_counts}
    return {"input_ids": source, "decoder_input_ids": target, **masks}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("names", ["transformers", "torch"])
def test_an_encoder_and_a_decoder_have_each_their_own_padding(names, left):
    """Of equal and of other lengths, on either side, with anything there."""

    def keys(one, two, encoded=ENCODED, decoded=DECODED, rubbish=1):
        sides = padded(encoded, one, rubbish, left=left), padded(decoded, two, rubbish, left=left)
        targets, _ = padded(decoded, two, -100, left=left)
        return example_keys((two_sided(names, *sides), targets), 2)

    expected = keys(3, 2)
    for one, two in ((3, 3), (5, 2), (3, 7), (6, 6)):
        assert torch.equal(keys(one, two), expected)
        assert torch.equal(keys(one, two, rubbish=20), expected)
        for other in ({"encoded": ((5, 7), (7, 8, 1))}, {"decoded": ((1,), (3, 5))}):
            assert not bool((keys(one, two, **other) == expected).any())


def test_targets_that_a_model_takes_have_the_positions_of_the_decoder():
    encoded, (decoded, _) = padded(ENCODED, 3, 1), padded(DECODED, 3, 1)
    inputs = {"input_ids": encoded[0], "attention_mask": encoded[1], "decoder_input_ids": decoded}
    other = torch.tensor([[4, 4, 4], [5, 5, 5]])
    for place in ((0, 2), (1, 2)):
        changed = other.clone()
        changed[place] = 9
        keys = [example_keys({**inputs, "labels": labels}, 2) for labels in (other, changed)]
        assert keys[0][place[0]] != keys[1][place[0]], "the encoder's mask is none of theirs"


@pytest.mark.parametrize("name", ["attention_mask", "padding_mask", "key_padding_mask", "lengths"])
def test_padding_on_the_left_and_on_the_right_changes_no_key(name):
    rows, found = ((5, 6), (7, 8, 9)), []
    for left in (False, True) if name != "lengths" else (False,):
        for length in (3, 4, 9):
            tokens, mask = padded(rows, length, 1, left=left)
            places = torch.where(mask == 1, mask.cumsum(1) - 1, 1)
            vectors = torch.stack([tokens, -tokens], -1).double()
            given = {"attention_mask": mask, "lengths": mask.sum(1)}.get(name, mask == 0)
            found.append(example_keys(({"x": tokens, "v": vectors, "at": places, name: given}, tokens), 2))
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("name", ["attention_mask", "padding_mask", "key_padding_mask"])
def test_the_side_of_padding_is_known_of_an_encoder_and_of_a_decoder(name):
    for left in (False, True):
        tokens, mask = padded(((5, 6), (7, 8, 9)), 4, 1, left=left)
        added = torch.zeros(2, 4).masked_fill(mask == 0, -torch.inf)
        for each in (added, mask if name == "attention_mask" else mask == 0):
            assert padded_before({"x": tokens, name: each}) == left
    for encoder, decoder in product((False, True), repeat=2):
        sides = padded(ENCODED, 5, 1, left=encoder), padded(DECODED, 5, 1, left=decoder)
        for names in ("transformers", "torch"):
            assert padded_before(two_sided(names, *sides)) == encoder + 2 * decoder


def test_padding_on_no_side():
    none = torch.tensor([[0, 0, 0], [1, 0, 1]])  # nothing that counts; a gap
    assert not padded_before({"attention_mask": none})
    assert not padded_before({"attention_mask": torch.zeros(2, 0)})
    assert not padded_before({"x": torch.zeros(2, 3), "lengths": torch.tensor([0, 2])})
    assert not padded_before({"x": none}) and not padded_before(none) and not padded_before([none, none])
    assert padded_before({"attention_mask": none.flip(1)}) == 0
    assert padded_before({"attention_mask": torch.tensor([[0, 1, 0]])})


def test_how_far_positions_that_count_are_apart_is_content():
    tokens, mask = torch.tensor([[5, 6, 7, 0], [5, 9, 7, 0], [5, 7, 0, 0], [0, 5, 6, 7]]), torch.ones(4, 4)
    mask[:, 1] = mask[:, 3] = 0  # 5 and 7 with a gap, whatever stands there
    mask[2], mask[3] = torch.tensor([1, 1, 0, 0]), torch.tensor([0, 1, 0, 1])
    keys = example_keys({"input_ids": tokens, "attention_mask": mask.long()}, 4)
    assert keys[0] == keys[1] == keys[3] != keys[2]


@pytest.mark.parametrize("name", ["attention_mask", "padding_mask", "src_key_padding_mask"])
def test_a_zero_that_counts_is_no_padding(name):
    """Also where masks are zero at what counts: true at padding, or minus infinity."""
    added = torch.tensor([[0.0, 0.0], [0.0, -torch.inf]])
    for mask in (added, added < 0)[: 1 if name in COUNTS else 2]:
        keys = example_keys({"x": torch.tensor([[5.0, 0.0], [5.0, 7.0]]), name: mask}, 2)
        assert keys[0] != keys[1]


def test_inputs_without_positions_and_without_any_that_count_have_keys():
    for mask in (torch.zeros(2, 0), torch.zeros(2, 3)):
        assert example_keys({"input_ids": mask, "attention_mask": mask}, 2).shape == (2,)


class Translator(nn.Module):
    """Outputs for every position of the decoder, that depend on all the encoder is given."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(30, 6), nn.Linear(6, 4)

    def forward(self, input_ids, attention_mask, decoder_input_ids, decoder_attention_mask):
        mask = attention_mask[..., None].double()
        context = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        return self.head(torch.tanh(self.words(decoder_input_ids) + context[:, None]))


@pytest.mark.filterwarnings("ignore::slu.errors.CalibrationWarning")
def test_a_fit_of_an_encoder_and_a_decoder_depends_on_no_batches_and_refuses_other_texts(tmp_path):
    torch.manual_seed(0)
    model = Translator().double()
    lengths = torch.randint(2, 7, (2, 60)).tolist()
    encoded, decoded = ([torch.randint(2, 30, (each,)).tolist() for each in side] for side in lengths)

    def fit(size, encoded=encoded, length=None, **settings):
        loader = []
        for start in range(0, 60, size):
            sides = [side[start : start + size] for side in (encoded, decoded)]
            both = [padded(some, length or max(map(len, some)), 1) for some in sides]
            loader.append(two_sided("transformers", *both))
        return SLU(model, "classification", rank=4, sketch_size=30, scale=None).fit(loader, **settings)

    scores = [fit(size) for size in (7, 60)]
    numbers = [each.state.calibration.reservoir.numbers for each in scores]
    assert numbers[0] == numbers[1] and len(numbers[0]) >= 19
    query = two_sided("transformers", padded(encoded[:5], 6, 1), padded(decoded[:5], 6, 1))
    values = [each(query, reading="variance") for each in scores]
    torch.testing.assert_close(*values, rtol=1e-9, atol=0, equal_nan=True)

    fit(60, length=6, checkpoint=Checkpoint(tmp_path / "run"))
    # Other words wherever the decoder's padding is.
    other = [
        [*one[: len(two)], *(31 - word for word in one[len(two) :])] for one, two in zip(encoded, decoded, strict=True)
    ]
    assert other != encoded
    with pytest.raises(MismatchError, match="differ in content"):
        fit(60, other, length=6, checkpoint=Checkpoint(tmp_path / "run"))


class Positioned(nn.Module):
    """Positions are numbered from the first column, as in BERT and GPT-2 where none are given."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(30, 6), nn.Embedding(12, 6), nn.Linear(6, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None].double()
        seen = torch.tanh(self.words(input_ids) + self.places.weight[: input_ids.shape[1]])
        return self.head((seen * mask).sum(1) / mask.sum(1))


class Sided:
    """Texts whose padding is on a side in each pass; Ctrl-C after `stop` batches."""

    def __init__(self, rows, *sides, stop=-1, length=None, shuffle=False) -> None:
        self.rows, self.sides, self.stop, self.length, self.shuffle = rows, list(sides), stop, length, shuffle

    def __iter__(self):
        left = self.sides.pop(0) if len(self.sides) > 1 else self.sides[0]
        rows = [self.rows[place] for place in torch.randperm(60)] if self.shuffle else self.rows
        for start in range(0, 60, 10):
            if self.stop == 0:
                raise KeyboardInterrupt
            self.stop -= 1
            some = rows[start : start + 10]
            tokens, mask = padded(some, self.length or max(map(len, some)), 1, left=left)
            yield {"input_ids": tokens, "attention_mask": mask}


@pytest.mark.filterwarnings("ignore::slu.errors.CalibrationWarning")
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("solver", ["stream", "lanczos"])
def test_padding_on_the_other_side_is_another_fit_and_more_of_it_is_not(solver, left, tmp_path):
    torch.manual_seed(0)
    model = Positioned().double()
    rows = [torch.randint(2, 30, (each,)).tolist() for each in torch.randint(2, 7, (60,)).tolist()]

    def fit(*sides, path, **settings):
        slu = SLU(model, "classification", rank=4, sketch_size=30, scale=None, solver=solver)
        return slu.fit(Sided(rows, *sides, **settings), checkpoint=Checkpoint(tmp_path / path, every=0))

    words = "padding stands before some of the .* points of the data (here|in the run that began it), and before none"
    fit(left, path="finished")
    with pytest.raises(MismatchError, match=words):
        fit(not left, path="finished")
    fit(left, path="finished", length=9)
    fit(left, path="finished", shuffle=True)
    with pytest.raises(KeyboardInterrupt):
        fit(left, path="stopped", stop=4 if solver == "stream" else 16)
    before = (tmp_path / "stopped").read_bytes()
    with pytest.raises(MismatchError, match=words):
        fit(not left, path="stopped")
    assert (tmp_path / "stopped").read_bytes() == before
    fit(left, path="stopped")
    if solver == "lanczos":
        with pytest.raises(ChangedDataError, match=r"padding stands .* points of the data (here|in the first pass)"):
            fit(left, not left, path="passes")
