"""Padding changes no score, and what stands at masked positions counts nothing in a fit."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from zoo.entries import Case, changed
from zoo.entry import IGNORED, some
from zoo.texts import VOCABULARY

ROUNDING = {"rtol": 1e-3, "atol": 1e-3, "equal_nan": True}
TEXTS = ("bert", "distilbert", "roberta", "gpt2", "bert-tokens", "gpt2-tokens", "gpt2-language", "t5-encoder", "lora")
PADDED = (*TEXTS, "transformer-encoder", "packed-lstm")
SLOW = ("t5-tokens",)
MORE = 3  # positions of padding


def further(case, batch, longer=MORE):
    """A batch padded further."""
    if case.name == "transformer-encoder":
        sequence, mask, labels = batch
        return nn.functional.pad(sequence, (0, 0, 0, longer)), nn.functional.pad(mask, (0, longer), value=True), labels
    if case.name == "packed-lstm":
        sequence, lengths, labels = batch
        return nn.functional.pad(sequence, (0, 0, 0, longer)), lengths, labels
    labels = batch["labels"]
    return {
        "input_ids": nn.functional.pad(batch["input_ids"], (0, longer), value=1 if case.name == "roberta" else 0),
        "attention_mask": nn.functional.pad(batch["attention_mask"], (0, longer)),
        "labels": nn.functional.pad(labels, (0, longer), value=IGNORED) if labels.dim() == 2 else labels,
    }


def rubbish(case, batch):
    """A batch with something else at the positions that its mask leaves out, and with labels there."""
    if case.name == "transformer-encoder":
        sequence, mask, labels = batch
        return torch.where(mask[..., None], torch.full_like(sequence, 7.0), sequence), mask, labels
    if case.name == "packed-lstm":
        sequence, lengths, labels = batch
        behind = torch.arange(sequence.shape[1]) >= lengths[:, None]
        return torch.where(behind[..., None], torch.full_like(sequence, 7.0), sequence), lengths, labels
    mask, labels = batch["attention_mask"].bool(), batch["labels"]
    return {
        "input_ids": torch.where(mask, batch["input_ids"], VOCABULARY - 1),
        "attention_mask": batch["attention_mask"],
        # Of a language model the label of the first padding is that of the last word.
        "labels": torch.where(mask, labels, 2) if labels.dim() == 2 and "language" not in case.name else labels,
    }


def without_mask(case, batch):
    """A batch padded further whose mask says that there is no padding."""
    padded = further(case, batch)
    if case.name == "transformer-encoder":
        return padded[0], torch.zeros_like(padded[1]), padded[2]
    if case.name == "packed-lstm":
        return padded[0], torch.full_like(padded[1], padded[0].shape[1]), padded[2]
    return {**padded, "attention_mask": torch.ones_like(padded["attention_mask"])}


def cut(scores, like):
    """The scores of the positions that were there before the padding."""
    return scores if scores.dim() == 1 else scores[:, : like.shape[1]]


def marked(names):
    return [*names, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.fixture(scope="module", params=marked(PADDED))
def padded(request):
    return Case(request.param)


def test_padding_changes_no_score(padded):
    scores = padded.score(padded.batch)
    longer = padded.score(further(padded, padded.batch))
    assert_close(cut(longer, scores), scores, **ROUNDING)
    assert bool(cut(longer, scores).isnan().eq(scores.isnan()).all())
    if longer.dim() == 2:
        assert bool(longer[:, -MORE:].isnan().all())


def test_control_without_the_mask_scores_change(padded):
    if padded.name.startswith("gpt2"):
        pytest.skip("a causal model never looks at what comes after a token")
    scores = padded.score(padded.batch)
    longer = cut(padded.score(without_mask(padded, padded.batch)), scores)
    counted = padded.entry.counted(padded.batch)
    assert float((longer - scores)[counted].abs().max()) > 10 * ROUNDING["atol"]


@pytest.mark.parametrize("name", marked([name for name in PADDED if name not in ("roberta", "gpt2")]))
def test_masked_positions_count_nothing_in_the_fit(name):
    """Not of models that find the end of a text by the token of padding."""
    case = Case(name)
    other = case.fit(changed(case.loader, lambda batch: rubbish(case, batch)))
    assert_close(other(case.batch), case.score(case.batch), **ROUNDING)
    assert_close(case.score(rubbish(case, case.batch)), case.score(case.batch), **ROUNDING)


def test_masked_positions_of_the_fit_are_there_to_be_ignored():
    """The control of the test before it: the batches that it compares do differ."""
    for name in PADDED:
        case = Case(name)
        parts = zip(case.loader, changed(case.loader, lambda batch, case=case: rubbish(case, batch)), strict=True)
        assert any(differ(before, after) for before, after in parts), name


def differ(before, after):
    first = "input_ids" if isinstance(before, dict) else 0
    return not torch.equal(before[first], after[first])


@pytest.mark.parametrize("name", ["bert-tokens", "t5-encoder", "transformer-encoder", "packed-lstm"])
def test_a_fit_on_batches_padded_further_is_the_same_fit(name):
    case = Case(name)
    other = case.fit(changed(case.loader, lambda batch: further(case, batch)))
    assert_close(other(some(case.batch, slice(0, 5))), case.score(some(case.batch, slice(0, 5))), **ROUNDING)
