"""Every architecture with the calls a user would write: doctor, fit, score, save, load, flag."""

import pytest
import torch
import transformers
from torch.testing import assert_close

import slu
from slu import SLU
from slu.errors import DataError
from untouched import assert_same, snapshot
from zoo import plain
from zoo.entries import flat_scores
from zoo.entry import some

ROUNDING = {"rtol": 1e-3, "atol": 1e-3, "equal_nan": True}
"""Scores are standardized, so 1e-3 is a thousandth of their spread; float32 of another batch split moves them less."""

COARSE = {"rtol": 0.05, "atol": 0.05, "equal_nan": True}  # bfloat16 has three digits


def tolerance(case):
    return ROUNDING if case.name != "bfloat16" else COARSE


def test_doctor_has_no_objection(case):
    chosen = {"params": case.entry.settings.get("params")}
    diagnosis = slu.doctor(case.model, case.batch, likelihood=case.entry.likelihood, **chosen)
    assert diagnosis.ok, str(diagnosis)


def test_a_batch_as_the_loader_gives_it(case):
    counted = case.entry.counted(case.batch)
    scores = case.score(case.batch)
    assert scores.shape == counted.shape
    assert torch.equal(scores.isfinite(), counted)
    assert torch.equal(scores.isnan(), ~counted)
    assert len(scores[counted].unique()) > 0.5 * int(counted.sum()), "a score that says the same of all inputs"


def test_a_loader_is_its_batches(case):
    """A loader that shuffles gives its points in another order every time."""
    parts = [case.score(batch) for batch in case.loader]
    expected, actual = torch.cat([flat_scores(part) for part in parts]), flat_scores(case.score(case.loader))
    if case.entry.shuffled:
        expected, actual = expected.sort().values, actual.sort().values
    assert_close(actual, expected, **tolerance(case))


def test_a_batch_split_changes_rounding_only(case):
    whole, points = case.score(case.batch), len(case.entry.counted(case.batch))
    parts = [case.score(some(case.batch, rows)) for rows in (slice(0, 1), slice(1, 6), slice(6, points))]
    assert_close(torch.cat(parts), whole, **tolerance(case))


def test_a_file_has_the_same_scores(case, tmp_path):
    case.score.save(tmp_path / "score.slu")
    loaded = SLU.load(tmp_path / "score.slu", case.model)
    assert_close(loaded(case.batch), case.score(case.batch), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(loaded.flag(case.batch), case.score.flag(case.batch))


def test_flags(case):
    counted, flags = case.entry.counted(case.batch), case.score.flag(case.batch)
    assert case.score.calibration is not None, "the fit held no points out"
    assert flags.dtype == torch.bool
    assert flags.shape == counted.shape
    assert not bool(flags[~counted].any()), "a position that does not count raises an alarm"
    assert bool(case.score.flag(case.batch, false_alarms=0.9)[counted].any())


def test_the_model_is_untouched(case):
    batch = case.batch
    before = snapshot(case.model)
    case.fit([batch if not isinstance(batch, list) else tuple(batch)])(batch)
    assert_same(before, snapshot(case.model))


def test_labels_of_an_encoder_decoder_model_are_targets_and_make_the_inputs_of_its_decoder():
    config = transformers.T5Config(
        vocab_size=30, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    draw = torch.Generator().manual_seed(0)
    batch = {name: torch.randint(1, 30, (50, size), generator=draw) for name, size in (("input_ids", 6), ("labels", 4))}
    batch["attention_mask"] = torch.ones(50, 6, dtype=torch.long)
    batch["labels"][::2, 3] = -100
    score = SLU(model, "classification", rank=4).fit([batch], progress=False)
    scores = score(batch)
    assert torch.equal(scores.isnan(), batch["labels"] == -100)
    given = {key: value for key, value in batch.items() if key != "labels"}
    given["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    known = ~scores.isnan()
    assert torch.allclose(score(given)[known], scores[known], rtol=1e-3)


def test_a_list_of_nodes_and_labels_is_not_guessed():
    """Both are vectors of integers, so that the list could be two batches of nodes; in a tuple they are a pair."""
    model, nodes, labels = plain.Graph(), torch.arange(plain.POINTS), plain.labels()
    score = SLU(model, "classification").fit(plain.tables(nodes, labels))
    batch = [nodes[:9], labels[:9]]
    with pytest.raises(DataError, match=r"tuple\(batch\)"):
        score(batch)
    assert_close(score(tuple(batch)), score(nodes[:9]))
