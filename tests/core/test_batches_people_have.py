"""SLU on the batches that loaders of users give, with the call they would write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slu import SLU, MaxLogit
from slu.errors import DataError, ModelCallError

POINTS = 60


def made(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(0.3 * torch.randn(value.shape, generator=generator))
    return model


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y = drawn(POINTS, 6), torch.arange(POINTS) % 3


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, mask=None):
        return self.layer(x if mask is None else x * mask)


class Letters(nn.Module):
    """Counts letters: a tokenizer and a network."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(26, 3)

    def forward(self, counts):
        return self.layer(counts)


def counts(texts) -> torch.Tensor:
    return torch.tensor([[float(text.count(chr(97 + place))) for place in range(26)] for text in texts])


def random_texts(number: int) -> list[str]:
    numbers = np.random.default_rng(0)
    return ["".join(chr(97 + each) for each in numbers.integers(0, 26, 12)) for _ in range(number)]


def test_a_batch_of_the_loader_is_scored_as_its_inputs():
    for extra in ((), (torch.arange(POINTS),)):
        loader = DataLoader(TensorDataset(X, Y, *extra), batch_size=20)
        score = SLU(made(nn.Linear(6, 3)), "classification", rank=4).fit(loader)
        batch = next(iter(loader))
        assert isinstance(batch, list) and torch.equal(score(batch), score(X[:20]))
        assert torch.equal(score(tuple(batch)), score(X[:20]))
        assert torch.allclose(score(loader), score(X), rtol=1e-4)


def test_a_mask_is_never_taken_for_targets(tmp_path):
    mask = drawn(POINTS, 6, seed=2) > 0
    model = made(Masked())
    score = SLU(model, "classification", rank=4).fit((X, Y))
    with pytest.raises(DataError, match=r"bool \(60, 6\), which can be read in two ways"):
        score((X, mask))
    masked = SLU(model, "classification", rank=4).fit([((X, mask), Y)])
    assert torch.equal(masked((X, mask)), masked(((X, mask), None)))
    assert torch.equal(masked((X, mask)), masked({"x": X, "mask": mask}))
    masked.save(tmp_path / "score.slu")
    again = SLU.load(tmp_path / "score.slu", model)
    assert torch.equal(again((X, mask)), masked((X, mask))), "the file keeps the format"
    score.save(tmp_path / "score.slu")
    with pytest.raises(DataError, match="two ways"):
        SLU.load(tmp_path / "score.slu", model)((X, mask))


def test_the_file_of_a_baseline_keeps_the_format(tmp_path):
    mask, model = drawn(POINTS, 6, seed=2) > 0, made(Masked())
    score = MaxLogit(model).fit([((X, mask), Y)])
    score.save(tmp_path / "score.slu")
    again = MaxLogit.load(tmp_path / "score.slu", model)
    assert torch.equal(again((X, mask)), score((X, mask)))


@pytest.mark.parametrize("solver", ["stream", "lanczos"])
def test_strings_and_dicts_give_the_scores_of_their_tensors(solver):
    texts, model = random_texts(POINTS), made(Letters())
    settings = {"rank": 4, "solver": solver}
    plain = SLU(model, "classification", **settings).fit([(counts(texts), Y)], calibration=False)
    expected = plain(counts(texts), reading="variance")
    forms = [
        (texts, lambda model, batch: model(counts(batch))),
        ([{"text": text} for text in texts], lambda model, batch: model(counts(each["text"] for each in batch))),
        ({"text": texts, "label": Y}, lambda model, batch: model(counts(batch["text"]))),
    ]
    for data, forward in forms:
        score = SLU(model, "classification", forward=forward, **settings).fit(data, calibration=False)
        assert score(data).shape == (POINTS,)
        # Random labels belong to the content of a point, which is another one here: the subspace of few points is not.
        assert torch.corrcoef(torch.stack([score(data, reading="variance"), expected]))[0, 1] > 0.9


def test_held_out_strings_are_scored_and_split_as_strings():
    texts, model = random_texts(200), made(Letters())
    method = SLU(model, "classification", rank=4, forward=lambda model, batch: model(counts(batch)))
    loader = [texts[:80], texts[80:100], texts[100:]]
    score = method.fit(loader)
    reservoir = score.state.calibration.reservoir
    held = [text for batch, _ in reservoir.batches() for text in batch]
    assert len(held) == len(set(held)) >= 19 and set(held) < set(texts)
    again = method.fit([texts[:7], texts[7:]])
    assert {text for batch, _ in again.state.calibration.reservoir.batches() for text in batch} == set(held)
    assert torch.allclose(torch.cat([score(texts[:50]), score(texts[50:])]), score(texts), rtol=1e-4)
    assert score.flag(texts).shape == (200,)


def test_a_dict_of_arrays_with_targets_inside():
    model = made(Masked())
    batch = {"x": X.double().numpy(), "labels": Y.numpy(), "index": np.arange(POINTS)}
    score = SLU(model, "classification", rank=4, curvature="empirical-fisher").fit([batch])
    expected = SLU(model, "classification", rank=4, curvature="empirical-fisher").fit([({"x": X}, Y)])
    assert torch.equal(score(batch), expected(X))


@dataclass
class Record:
    x: torch.Tensor
    labels: torch.Tensor


def test_pairs_of_texts_and_dataclasses_with_a_forward():
    texts, model = random_texts(POINTS), made(Letters())
    pairs = DataLoader(list(zip(texts, texts[::-1], Y.tolist(), strict=True)), batch_size=20)

    def joined(model, batch):
        return model(counts(batch[0]) - counts(batch[1]))

    score = SLU(model, "classification", rank=4, forward=joined).fit(pairs)
    assert torch.allclose(score(pairs)[:20], score((texts[:20], texts[::-1][:20])), rtol=1e-3, atol=1e-3)
    model = made(nn.Linear(6, 3))
    records = [Record(X[:30], Y[:30]), Record(X[30:], Y[30:])]
    settings = {"rank": 4, "curvature": "empirical-fisher"}
    score = SLU(model, "classification", forward=lambda model, batch: model(batch.x), **settings).fit(records)
    assert score(records[0]).shape == (30,) and score(records).shape == (POINTS,)


def test_an_error_says_what_forward_was_given():
    with pytest.raises(ModelCallError, match=r"forward= was given float32 \(60, 6\), and bool \(60, 6\) of the batch"):
        SLU(made(Masked()), "classification", rank=4, forward=lambda model, batch: model(*batch)).fit([(X, X > 0)])
