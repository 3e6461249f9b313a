"""Which parts of an item are inputs and which targets: by what was read before, by the signature, never guessed."""

from __future__ import annotations

import json
import logging
from collections import UserDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from read_batches import Masked, One, X, Y, reader, same
from slu.data import BatchReader, Signature
from slu.data.format import Format
from slu.data.signature import decoder_inputs, predicts_next
from slu.data.structure import Examples, converted, take
from slu.errors import DataError

MASK = torch.ones(4, 2, dtype=torch.bool)


class Two(nn.Module):
    def forward(self, user, item):
        return user + item


class Flagged(nn.Module):
    def forward(self, x, features=False):
        return x


class Tokens(nn.Module):
    def forward(self, input_ids=None, attention_mask=None, labels=None):
        return input_ids


@pytest.mark.parametrize(
    ("model", "item", "expected"),
    [
        (One(), X, (X, None)),
        (One(), (X,), (X, None)),
        (One(), [X, Y], (X, Y)),
        (One(), (X, Y, Y), (X, Y)),
        (One(), (X, MASK), (X, MASK)),  # the model takes no second input
        (One(), (X, X), (X, X)),
        (Masked(), (X, Y), (X, Y)),
        (Masked(), (X, X[:, :1]), (X, X[:, :1])),
        (Masked(), ((X, MASK), Y), ((X, MASK), Y)),
        (Masked(), ((X, MASK), None), ((X, MASK), None)),
        (Masked(), ((X,), X), ((X,), X)),
        (Masked(), (X, None), (X, None)),
        (Flagged(), (X, X), (X, X)),  # a default that is no tensor leaves one reading
        (Two(), (X, X), ((X, X), None)),
        (Two(), [X, X, Y], ((X, X), Y)),
        (Two(), (X, X, MASK, Y), ((X, X), MASK)),
        (Two(), ((X, X), Y), ((X, X), Y)),
        (Two(), {"user": X, "item": X, "y": Y}, ({"user": X, "item": X}, Y)),
        (None, (X, X), (X, X)),
        (None, (X, MASK), (X, MASK)),
        (None, {"x": X, "labels": Y}, ({"x": X, "labels": Y}, Y)),
    ],
)
def test_items(model, item, expected):
    assert same(reader(model).read(item, 0), expected)


@pytest.mark.parametrize("second", [MASK, torch.ones(4, dtype=torch.bool), X, torch.ones(4, 2, dtype=torch.long)])
@pytest.mark.parametrize("form", [tuple, list])
def test_what_may_be_a_mask_or_targets_is_refused(second, form):
    with pytest.raises(DataError) as caught:
        reader(Masked()).read(form([X, second]), 3)
    message = str(caught.value)
    assert message.startswith(f"batch 3 is a {form.__name__} of float32 (4, 2), {str(second.dtype)[6:]} ")
    assert "forward(x, mask)" in message and "((x, mask), None)" in message and "((x,), targets)" in message


def test_a_tuple_is_read_as_the_fit_was():
    known = reader(Masked())
    known.read(((X, MASK), Y), 0)
    assert same(known.read((X, MASK), 0), ((X, MASK), None))
    assert same(known.read((X, MASK, Y), 0), ((X, MASK), Y))
    known = reader(Masked())
    known.read((X, Y), 0)
    assert same(known.read((X, Y), 0), (X, Y))
    with pytest.raises(DataError, match="two ways"):
        known.read((X, MASK), 0)
    known = reader(Masked())
    known.read(((X,), X[:, [0, 1, 1]]), 0)
    assert same(known.read((X, X[:, [0, 1, 1]]), 0), ((X,), X[:, [0, 1, 1]])), "targets as the fit had them"
    with pytest.raises(DataError, match="two ways"):
        known.read((X, X), 0)


def test_with_a_forward_of_the_users_own_the_fit_decides():
    known = reader(None)
    known.read((X, Y), 0)
    with pytest.raises(DataError, match=r"called by the function forward="):
        known.read((X, MASK), 0)
    known = reader(None)
    known.read(((X, MASK), Y), 0)
    assert same(known.read((X, MASK), 0), ((X, MASK), None))
    with pytest.raises(DataError, match="two ways"):
        reader(None).read((X, MASK, Y), 0)


def test_the_format_is_plain_data():
    known = reader(Masked())
    known.read(((X, MASK), Y), 0)
    restored = reader(Masked())
    restored.format = Format.from_plain(json.loads(json.dumps(known.format.to_plain())))
    assert restored.format == known.format
    assert same(restored.read((X, MASK), 0), ((X, MASK), None))
    assert Format.from_plain(None) == Format()


def test_a_list_as_a_data_loader_gives_it_is_one_batch():
    assert reader(One()).is_one_batch([X, Y]) and reader(One()).is_one_batch([X, X[:, :1]])
    assert not reader(One()).is_one_batch([X, X, X]) and not reader(One()).is_one_batch([X, X[:2]])
    assert not reader(One()).is_one_batch([(X, Y), (X, Y)]) and not reader(One()).is_one_batch([[X, Y], [X, Y]])
    assert reader(One()).is_one_batch([{"x": X}, Y]) and reader(Two()).is_one_batch([X, X])
    assert not reader(One()).is_one_batch([{"x": X}, {"x": X}]) and not reader(One()).is_one_batch([(X, Y), X])
    assert reader(Masked()).is_one_batch([[X, MASK], Y])
    with pytest.raises(DataError, match=r"as one batch of inputs and targets, and as 2 batches; .*tuple\(batch\)"):
        reader(One()).is_one_batch([X, torch.ones(4, 3)])


def test_a_list_is_read_by_the_format_of_the_fit():
    known = reader(One())
    known.read((X, torch.ones(4, 3)), 0)
    assert known.is_one_batch([X, torch.ones(4, 3)]) and not known.is_one_batch([X, X])
    ids = torch.ones(4, 7, dtype=torch.long)
    known = reader(One())
    known.read((ids, Y), 0)
    known.read((ids[:, :5], Y), 1)
    assert known.is_one_batch([ids, Y]) and not known.is_one_batch([ids, ids[:, :6]]), "lengths may vary"
    known = reader(One())
    known.read((Y, Y), 0)
    with pytest.raises(DataError, match="can be read as one batch"):
        known.is_one_batch([Y, Y])


class Encoding(UserDict):
    """As of a tokenizer: no dict, with attributes for its keys."""

    def __getattr__(self, name):
        return self.data[name]


def test_keys_that_forward_does_not_take_are_left_out_with_one_line(caplog):
    item = Encoding(input_ids=X, attention_mask=MASK, labels=Y, idx=Y)
    known = reader(Tokens())
    with caplog.at_level(logging.INFO, "slu"):
        for place in range(2):
            inputs, targets = known.read(item, place)
    assert list(inputs) == ["input_ids", "attention_mask"] and targets is Y
    assert [record.message for record in caplog.records] == [
        "forward(input_ids, attention_mask, labels) does not take the keys idx of a batch; they are left out"
    ]
    inputs, targets = reader(None).read(item, 0)
    assert type(inputs) is Encoding and inputs.idx is Y and targets is Y, "forward= is given all, as it came"


def test_a_dict_without_what_the_model_needs_is_refused():
    with pytest.raises(
        DataError, match=r"keys 'image', 'label', and the model has forward\(x\): x is missing.*batch\['image'\]"
    ):
        reader(One()).read({"image": X, "label": Y}, 0)
    with pytest.raises(DataError, match="none of these is left"):
        reader(Tokens()).read({"image": X}, 0)
    with pytest.raises(DataError, match=r"needs 2 inputs: forward\(user, item\)"):
        reader(Two()).read((X,), 0)


@pytest.mark.parametrize(
    "wrap",
    [nn.DataParallel, lambda model: torch.compile(model, backend="eager")],
    ids=["DataParallel", "torch.compile"],
)
def test_the_signature_is_that_behind_wrappers(wrap):
    signature = Signature.of(wrap(Masked()))
    assert signature.names == signature.inputs == ("x", "mask")


def test_signatures():
    class Any_(nn.Module):
        def forward(self, *args, **kwargs):
            return args

    assert reader(Masked()).names == ("x", "mask") and reader(None).names == ()
    assert Signature.of(Two()).required == ("user", "item")
    assert Signature.of(Any_()).keywords is None and Signature.of(Any_()).others(3) == ("*args",)


def test_arrays_become_tensors_of_the_models_type():
    backwards = np.arange(8.0).reshape(4, 2)[::-1]
    inputs, targets = reader(One()).read((backwards, np.arange(4)), 0)
    assert inputs.dtype == torch.float32 and targets.dtype == torch.int64
    assert inputs.tolist() == backwards.tolist()
    inputs, _ = reader(None).read({"x": {"deep": np.ones((4, 2))}, "n": 3}, 0)
    assert inputs["x"]["deep"].dtype == torch.float32 and inputs["n"] == 3


@pytest.mark.parametrize("kind", [">f4", ">f8", ">i2", "<i4", ">c8", "=f2"])
def test_arrays_of_another_byte_order_are_the_same_numbers(kind):
    """As files of IDX, FITS and HDF5 give them."""
    values = np.arange(8).reshape(4, 2)
    tensor = converted(values.astype(kind), None)
    assert torch.equal(tensor, torch.from_numpy(values.astype(np.dtype(kind).newbyteorder("="))))
    assert converted(values.astype(">f8"), torch.float32).dtype == torch.float32


DAYS = np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")
NO_NUMBERS = [
    (DAYS, r"datetime64\[D\] .*\(array - numpy\.datetime64"),
    (DAYS - DAYS[0], r"timedelta64\[D\] .*array / numpy\.timedelta64"),
    (np.zeros(4, dtype=[("a", "f4"), ("b", "f4")]), "'a'.*structured_to_unstructured"),
    (np.ma.masked_array(np.ones((4, 2)), [[0, 1]] * 4), r"masked array .*filled\(0\)"),
    (np.ma.array([(1, 2.0)] * 4, mask=[(0, 1)] * 4, dtype=[("a", int), ("b", float)]), r"masked array .*filled\(0\)"),
    (np.ma.array([(1, 2.0)] * 4, dtype=[("a", int), ("b", float)]), r"an array of \[\('a'"),
]
if np.dtype(np.longdouble).itemsize > 8:  # elsewhere it is a float64
    NO_NUMBERS.append((np.ones((4, 2), dtype=np.longdouble), r"array\.astype\('float64'\)"))
    NO_NUMBERS.append((np.ones((4, 2), dtype=np.clongdouble), r"array\.astype\('complex128'\)"))


@pytest.mark.parametrize(("array", "message"), NO_NUMBERS)
def test_arrays_that_are_no_numbers_of_torch_are_refused(array, message):
    for item in (array, (array, Y), {"x": array}):
        with pytest.raises(DataError, match=message):
            reader(None).read(item, 0)


def test_a_masked_array_without_masked_places_is_an_array():
    assert converted(np.ma.masked_array(np.ones((4, 2))), None).tolist() == [[1.0, 1.0]] * 4


TEXTS = ["a", "bb", "c"]


@pytest.mark.parametrize(
    ("item", "inputs", "targets"),
    [
        (TEXTS, Examples(TEXTS), None),
        ([tuple(TEXTS), torch.arange(3)], Examples(TEXTS), torch.arange(3)),
        ((TEXTS, [0, 1, 2]), Examples(TEXTS), torch.arange(3)),
        ([TEXTS, [0, 1, 2]], Examples(TEXTS), torch.arange(3)),
        ([[1, 2], [3]], Examples([[1, 2], [3]]), None),
        ([{"text": "a", "label": 1}], Examples([{"text": "a", "label": 1}]), torch.tensor([1])),
        ([{"ids": [1, 2], "y": 1.5}], Examples([{"ids": [1, 2], "y": 1.5}]), torch.tensor([1.5])),
        ({"text": TEXTS, "label": [0, 1, 2]}, {"text": TEXTS, "label": [0, 1, 2]}, torch.arange(3)),
        ({"text": TEXTS, "label": TEXTS}, {"text": TEXTS, "label": TEXTS}, None),
        ([(X[0], 0), (X[1], 1)], Examples([(X[0], 0), (X[1], 1)]), None),
    ],
)
def test_lists_of_examples(item, inputs, targets):
    assert same(reader(None).read(item, 0), (inputs, targets))
    with pytest.raises(DataError, match=r"(holds a list of .*tokenizer.*forward=lambda)|(keys .* is missing)"):
        reader(One()).read(item, 0)


def test_a_list_of_examples_is_one_batch_and_of_dicts_of_tensors_several():
    for data in (TEXTS, [{"text": "a"}, {"text": "b"}], [{"x": X, "label": 1}], [(X[0], 0), (X[1], 1)]):
        assert reader(None).is_one_batch(data)
    assert not reader(None).is_one_batch([{"x": X}, {"x": X}]) and not reader(None).is_one_batch([TEXTS, TEXTS[:2]])
    assert reader(None).is_one_batch([[1, 2], [3]])


def test_a_list_of_batches_with_a_number_or_a_name_beside_the_targets_is_no_list_of_examples():
    for data in ([(X, Y, 0), (X, Y, 1)], [{"x": X, "labels": Y, "name": "train"}]):
        assert not reader(One()).is_one_batch(data)
        inputs, targets = reader(One()).read(data[0], 0)
        assert targets is Y and (inputs["x"] if isinstance(inputs, dict) else inputs) is X


@pytest.mark.parametrize(
    ("item", "targets"),
    [
        ((TEXTS, TEXTS, torch.arange(3)), torch.arange(3)),
        ([tuple(TEXTS), tuple(TEXTS), [0, 1, 2]], torch.arange(3)),
        ((TEXTS, TEXTS), None),
        ((torch.ones(3, 2), TEXTS), None),
    ],
)
def test_a_forward_of_the_users_own_is_given_pairs_of_texts_whole(item, targets):
    known = reader(None)
    for place in range(2):  # by its format as well
        inputs, found = known.read(item, place)
        assert type(inputs) is type(item) and len(inputs) == len(item) and list(inputs[1]) == TEXTS
        assert (found is None) if targets is None else torch.equal(found, targets)
    assert all(isinstance(each, Examples | torch.Tensor) for each in inputs), "each can be cut to some points"


@dataclass(frozen=True)
class Record:
    x: object
    labels: object
    name: str = "train"


def test_an_object_of_a_dataclass_is_a_batch():
    item = Record(np.ones((4, 2)), Y)
    assert reader(None).is_one_batch(item)
    inputs, targets = reader(None).read(item, 0)
    assert type(inputs) is Record and inputs.x.dtype == torch.float32 and targets is Y and inputs.name == "train"
    some = take(inputs, slice(1, 3), 4)
    assert some.x.shape == (2, 2) and some.labels.tolist() == [1, 2] and len(inputs.labels) == 4
    assert isinstance(item.x, np.ndarray), "the user's object stays as it is"


class Graph:
    edge_index = torch.zeros(2, 5)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (pack_sequence([X[0], X[1]]), "PackedSequence .*pack them inside"),
        ((pack_sequence([X[0], X[1]]), Y), "PackedSequence"),
        (Graph(), "a graph came .*indices of nodes"),
        ({"x": X, "edge_index": torch.zeros(2, 5)}, "a graph came"),
        (X.to_sparse(), r"sparse tensor .*to_dense\(\)"),
        (torch.nested.nested_tensor([X[0], X[:, 0]], layout=torch.jagged), "nested tensor .*to_padded_tensor"),
        ([{"x": X[0].to_sparse(), "text": "a"}] * 4, r"sparse tensor .*to_dense\(\)"),
        ([{"x": [X.to_sparse()], "text": "a"}], "sparse tensor"),
        ([({"x": torch.nested.nested_tensor([X[0], X[:, 0]], layout=torch.jagged)}, 1)], "nested tensor"),
        ({"text": "a", "label": 1}, "one example, use a DataLoader"),
        (3, "int, without a tensor"),
        ((), "tuple of 0"),
    ],
)
def test_what_has_no_rows_of_points_is_refused(item, message):
    with pytest.raises(DataError, match=message):
        reader(None).read(item, 0)


def test_values_and_offsets_of_an_embedding_bag_are_refused():
    item = ((torch.arange(9), torch.tensor([0, 3, 3])), torch.arange(3))
    with pytest.raises(DataError, match=r"9 indices and 3 offsets of an EmbeddingBag; .*padding_idx"):
        reader(Two(), bags=True).read(item, 0)
    reader(Two(), bags=True).read(((torch.arange(9), torch.arange(9)), None), 0)  # users and items


def test_labels_of_a_causal_language_model_belong_to_the_position_before():
    class TinyForCausalLM(nn.Module):
        def forward(self, input_ids, labels=None):
            return nn.functional.one_hot(input_ids, 9).float()

    model = TinyForCausalLM()
    assert predicts_next(model) and not predicts_next(One())
    ids = torch.tensor([[1, 2, 3], [4, 5, -100]])
    causal = BatchReader(Signature.of(model), causal=True)
    inputs, targets = causal.read({"input_ids": ids.clamp(min=0), "labels": ids}, 0)
    assert targets.tolist() == [[2, 3, -100], [5, -100, -100]] and list(inputs) == ["input_ids"]
    # What was read once is read again as a pair, as from the points that were held out.
    assert causal.read((inputs, targets), 1)[1].tolist() == targets.tolist()


def test_an_encoder_decoder_model_makes_the_inputs_of_its_decoder_of_labels():
    class Translates(nn.Module):
        def forward(self, input_ids, decoder_input_ids=None, labels=None):
            return decoder_input_ids

        def prepare_decoder_input_ids_from_labels(self, labels):
            return labels.roll(1, 1)

    model = Translates()
    assert decoder_inputs(One()) is None
    known = BatchReader(Signature.of(model), decoder=decoder_inputs(nn.DataParallel(model)))
    labels = torch.tensor([[1, 2, 3], [4, 5, -100]])
    inputs, targets = known.read({"input_ids": labels, "labels": labels}, 0)
    assert list(inputs) == ["input_ids", "decoder_input_ids"] and targets is labels
    assert inputs["decoder_input_ids"].tolist() == labels.roll(1, 1).tolist()
    inputs, targets = known.read({"input_ids": labels, "decoder_input_ids": labels, "labels": labels}, 0)
    assert inputs["decoder_input_ids"] is labels and targets is labels, "given ones stay"
    assert list(known.read({"input_ids": labels}, 0)[0]) == ["input_ids"]
