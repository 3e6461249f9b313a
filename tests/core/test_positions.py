"""Networks with outputs for every token or pixel: curvature, scores, masks and padding."""

import logging

import pytest
import torch
from torch import nn

from positions import LIKELIHOODS, Segmenter, Tagger, dense_curvature, padded, pictures, seeded, texts
from slu import SLU, Lanczos, Probes, Stream
from slu.curvature import Curvature, RootRows
from slu.errors import CalibrationWarning, DataError, SettingError
from slu.gradients import Network
from slu.gradients.positions import MOST_GROUPS
from slu.likelihoods import resolve
from slu.parameters import select

EXACT = {"scale": None, "ridge": 0.0, "sketch": "identity"}


def network(model):
    return Network(model, select(model), positions=True)


def token_case():
    model = seeded(Tagger)
    inputs, _ = texts(9)
    return model, inputs, lambda: model(**inputs), inputs["attention_mask"] > 0


def pixel_case():
    model = seeded(Segmenter)
    inputs, _ = pictures(3, 4)
    return model, inputs, lambda: model(inputs).movedim(1, -1).flatten(1, 2), torch.ones(3, 16, dtype=torch.bool)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("case", [token_case, pixel_case])
def test_the_curvature_is_the_sum_over_positions_that_count(case, likelihood):
    model, inputs, call, counted = case()
    expected = dense_curvature(model, call, likelihood, counted)
    curvature = Curvature(network(model), resolve(likelihood), [inputs])
    dense = curvature @ torch.eye(curvature.shape[0], dtype=torch.float64)
    torch.testing.assert_close(dense, expected, rtol=1e-9, atol=1e-10)
    everything = dense_curvature(model, call, likelihood, torch.ones_like(counted))
    assert case is pixel_case or (everything - expected).norm() > 0.01 * expected.norm()  # the mask does count


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("case", [token_case, pixel_case])
def test_the_rows_of_a_fit_have_the_curvature_as_their_squares(case, likelihood):
    model, inputs, call, counted = case()
    rows = RootRows(network(model), resolve(likelihood), [inputs])
    total = torch.zeros(select(model).count, select(model).count, dtype=torch.float64)

    def add(chunk):
        part = torch.cat([values for _, values in sorted(chunk.pieces, key=lambda piece: piece[0])], -1).flatten(0, 1)
        total.add_(part.T @ part)

    rows.feed(add)
    torch.testing.assert_close(total, dense_curvature(model, call, likelihood, counted), rtol=1e-9, atol=1e-10)


def test_positions_without_a_target_count_nothing_in_a_fit():
    model = seeded(Tagger)
    (inputs, labels) = texts(9)
    labels[:, 1] = -100
    curvature = Curvature(network(model), resolve("classification"), [(inputs, labels)])
    dense = curvature @ torch.eye(curvature.shape[0], dtype=torch.float64)
    counted = (inputs["attention_mask"] > 0) & (labels != -100)
    expected = dense_curvature(model, lambda: model(**inputs), "classification", counted)
    torch.testing.assert_close(dense, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("reading", ["variance", "relative", "fisher", "fisher-relative", "entropy", "max-logit"])
@pytest.mark.parametrize("outputs", [1, 2, "all"])
def test_a_token_that_sees_no_other_scores_like_a_point_of_its_own(reading, outputs):
    """Then the score of every token is that of a network of single words, fitted on all that count."""
    model = seeded(lambda: Tagger(mixing=False))
    (inputs, labels) = texts(30)
    counted = inputs["attention_mask"] > 0
    words = inputs["input_ids"][counted]
    settings = {**EXACT, "rank": 12, "solver": Stream(labels_per_point="all")}
    tokens = SLU(model, "classification", **settings).fit((inputs, labels), calibration=False)
    single = SLU(model, "classification", **settings, forward=lambda model, ids: model(ids[:, None])[:, 0])
    alone = single.fit(words, calibration=False)(words, reading=reading, outputs=outputs)
    together = tokens((inputs, labels), reading=reading, outputs=outputs)
    assert together.shape == counted.shape and bool(together[~counted].isnan().all())
    torch.testing.assert_close(together[counted], alone, rtol=1e-7, atol=1e-10)


@pytest.mark.filterwarnings("ignore:the .* calibration points have only .* distinct:slu.errors.CalibrationWarning")
def test_layers_of_tokens_are_those_of_single_words():
    """Distances and the combined reading as well, calibrated on the same points."""
    model = seeded(lambda: Tagger(mixing=False))
    (inputs, labels), (more, _) = texts(30), texts(20, seed=5)
    counted, asked = inputs["attention_mask"] > 0, more["attention_mask"] > 0
    settings = {**EXACT, "rank": 12, "solver": Stream(labels_per_point="all")}
    tokens = SLU(model, "classification", **settings).fit((inputs, labels), calibration=more)
    single = SLU(model, "classification", **settings, forward=lambda model, ids: model(ids[:, None])[:, 0])
    alone = single.fit(inputs["input_ids"][counted], calibration=more["input_ids"][asked])
    assert tokens.calibration.points == alone.calibration.points == int(asked.sum())
    for reading in ("distance", "angle", "combined"):
        expected = alone(more["input_ids"][asked], reading=reading)
        torch.testing.assert_close(tokens(more, reading=reading)[asked], expected, rtol=1e-6, atol=1e-8)


CASES = {
    "tokens": (Tagger, texts, (7,)),
    "pixels": (Segmenter, pictures, (5, 5)),
}


@pytest.fixture(params=CASES)
def fitted(request):
    make, data, shape = CASES[request.param]
    model = seeded(make)
    batch = data()
    return SLU(model, "classification").fit(batch), batch, shape


def loader(batch, size):
    inputs, labels = batch
    for start in range(0, len(labels), size):
        some = slice(start, start + size)
        cut = {name: each[some] for name, each in inputs.items()} if isinstance(inputs, dict) else inputs[some]
        yield cut, labels[some]


def test_a_score_is_of_every_position_whatever_the_batch(fitted):
    score, batch, shape = fitted
    whole = score(batch)
    assert whole.shape == (len(batch[1]), *shape)
    counted = batch[1] != -100
    assert bool(whole[counted].isfinite().all()) and bool(whole[~counted].isnan().all())
    split = score(list(loader(batch, 7)))
    torch.testing.assert_close(split, whole, rtol=1e-7, atol=1e-8, equal_nan=True)
    flags = score.flag(batch, false_alarms=0.2)
    assert flags.shape == whole.shape and flags.dtype == torch.bool and not bool(flags[~counted].any())
    assert 0.02 < flags[counted].double().mean() < 0.5


@pytest.mark.parametrize(("reduce", "expected"), [
    ("max", lambda each: each.nan_to_num(nan=-torch.inf).flatten(1).amax(1)),
    ("mean", lambda each: each.flatten(1).nanmean(1)),
    ("sum", lambda each: each.flatten(1).nansum(1)),
])  # fmt: skip
def test_scores_of_positions_are_reduced_to_one_per_input(fitted, reduce, expected):
    score, batch, _ = fitted
    torch.testing.assert_close(score(batch, reduce=reduce), expected(score(batch)))
    pvalues, flags = score.pvalue(batch, reduce=reduce), score.flag(batch, reduce=reduce, false_alarms=0.1)
    assert pvalues.shape == flags.shape == (len(batch[1]),)
    assert bool(((score(batch, reduce=reduce) > score.threshold(0.1, reduce=reduce)) == flags).all())


def test_a_fit_is_the_same_in_a_file(fitted, tmp_path):
    score, batch, _ = fitted
    score.save(tmp_path / "score.slu")
    loaded = SLU.load(tmp_path / "score.slu", score.settings.network.model)
    torch.testing.assert_close(loaded(batch), score(batch), equal_nan=True)
    assert bool((loaded.flag(batch) == score.flag(batch)).all())
    with pytest.raises(SettingError, match=r"reduce='max'.*score.calibrate"):
        loaded.flag(batch, reduce="max")


@pytest.mark.parametrize("outputs", [1, Probes(3)])
def test_padding_changes_no_score(outputs):
    model = seeded(Tagger)
    batch = texts()
    score = SLU(model, "classification").fit(batch)
    longer = padded(batch, 5)
    for reading in ("combined", "fisher", "variance", "entropy", "distance"):
        plain = score(batch, reading=reading, outputs=None if reading == "combined" else outputs)
        more = score(longer, reading=reading, outputs=None if reading == "combined" else outputs)
        assert bool(more[:, 7:].isnan().all())
        torch.testing.assert_close(more[:, :7], plain, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_what_stands_at_the_padding_counts_nothing_in_a_fit():
    model = seeded(Tagger)
    batch, fresh = texts(), texts(10, seed=4)
    one, other = (SLU(model, "classification").fit(padded(batch, more, word)) for more, word in ((0, 3), (6, 8)))
    torch.testing.assert_close(one(fresh), other(fresh), rtol=1e-6, atol=1e-7, equal_nan=True)


def test_without_its_mask_padding_does_change_a_score():
    """The control: a network that is not told of the padding sees it."""
    model = seeded(Tagger)
    batch = texts()
    score = SLU(model, "classification").fit(batch)
    bare = {"input_ids": batch[0]["input_ids"]}
    assert not torch.allclose(score(bare)[:, 0], score(batch)[:, 0], rtol=1e-3)


def test_sequences_with_one_output_count_their_layers_at_any_length():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.tagger = Tagger()
            self.head = nn.Linear(3, 3)

        def forward(self, input_ids, attention_mask):
            outputs = self.tagger(input_ids, attention_mask) * attention_mask[..., None]
            return self.head(outputs.sum(1))

    model = seeded(Classifier)
    inputs, labels = texts()
    score = SLU(model, "classification").fit((inputs, labels[:, 0]))
    assert "tagger.layer" in score.state.layers.names
    longer, _ = padded((inputs, labels), 4)
    for reading in ("combined", "distance", "angle"):
        torch.testing.assert_close(score(longer, reading=reading), score(inputs, reading=reading), rtol=1e-9, atol=1e-9)


def test_of_many_positions_the_middle_of_every_group_is_measured():
    """It has the score that it has in a short text; its neighbours have its energy with their own weight."""
    model = seeded(lambda: Tagger(mixing=False))
    ids = torch.randint(11, (2, MOST_GROUPS * 3), generator=torch.Generator().manual_seed(0))
    few = {"input_ids": torch.arange(11)[:, None].expand(11, 8).contiguous()}
    score = SLU(model, "classification", **EXACT, rank=8).fit(few, calibration=False)
    exact = {name: torch.cat([score({"input_ids": part}, reading=name) for part in ids.split(32, 1)], 1) for name in
             ("fisher", "fisher-relative", "entropy")}  # fmt: skip
    together = {name: score({"input_ids": ids}, reading=name) for name in exact}
    middles = slice(1, None, 3)
    for name in ("fisher", "fisher-relative"):
        torch.testing.assert_close(together[name][:, middles], exact[name][:, middles], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(together["entropy"], exact["entropy"])
    weights = score.settings.likelihood.trace(model(ids).flatten(0, 1)).view(ids.shape)
    per_weight = (together["fisher"] / weights).unflatten(1, (-1, 3))
    torch.testing.assert_close(per_weight, per_weight[..., 1:2].expand_as(per_weight), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["tokens", "pixels"])
def test_scores_of_alike_positions_do_not_depend_on_how_many_there_are(kind):
    """Below and above 64: positions that see no others, in a fit on large inputs and queries of small ones."""
    drawn = torch.Generator().manual_seed(2)
    if kind == "tokens":
        model = seeded(lambda: Tagger(words=40, mixing=False))
        large, small = (torch.randint(40, shape, generator=drawn) for shape in ((60, 192), (60, 32)))
    else:
        model = seeded(lambda: nn.Sequential(nn.Conv2d(2, 6, 1), nn.Tanh(), nn.Conv2d(6, 3, 1)))
        large, small = (torch.randn(60, 2, side, side, generator=drawn, dtype=torch.float64) for side in (24, 6))
    score = SLU(model, "classification").fit(large)
    shares = [float(score.flag(each, false_alarms=0.1).double().mean()) for each in (large, small)]
    # Of some thousand positions a tenth is flagged; a mean over groups would flag nearly all of the small inputs.
    assert all(0.03 < share < 0.25 for share in shares), shares


@pytest.mark.parametrize("curvature", ["empirical-fisher", "hessian"])
def test_targets_of_pixels_come_with_their_channels_first(curvature):
    """Residuals of zero have no empirical Fisher; and other targets that of plain autograd."""
    model = seeded(Segmenter)
    inputs, _ = pictures(3, 4)
    targets = model(inputs).detach() + torch.arange(3.0, dtype=torch.float64)[:, None, None]
    operator = Curvature(network(model), resolve("regression"), [(inputs, targets)], kind=curvature)
    dense = operator @ torch.eye(operator.shape[0], dtype=torch.float64)

    def loss(values, point):
        outputs = torch.func.functional_call(model, values, inputs[point : point + 1])
        return 0.5 * (outputs - targets[point : point + 1]).square().sum()

    names = [name for name, _ in model.named_parameters()]
    values = {name: value.detach() for name, value in model.named_parameters()}
    expected = 0.0
    for point in range(3):
        if curvature == "empirical-fisher":
            gradient = torch.func.grad(loss)(values, point)
            flat = torch.cat([gradient[name].flatten() for name in names])
            expected = expected + torch.outer(flat, flat)
        else:
            blocks = torch.func.hessian(loss)(values, point)
            sizes = [values[name].numel() for name in names]
            rows = [torch.cat([blocks[one][other].reshape(size, -1) for other in names], 1)
                    for one, size in zip(names, sizes, strict=True)]  # fmt: skip
            expected = expected + torch.cat(rows)
    torch.testing.assert_close(dense, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("likelihood", "channels"), [("multilabel", 1), ("multilabel", 3), ("regression", 3)])
def test_networks_with_targets_for_every_channel_are_fitted_and_calibrated(likelihood, channels):
    model = seeded(lambda: Segmenter(outputs=channels))
    inputs, _ = pictures()
    targets = (model(inputs) > 0).double().detach()
    score = SLU(model, likelihood).fit((inputs, targets))
    assert score(inputs).shape == (40, 5, 5) and score.calibration.predictions is not None


def test_targets_that_fit_no_position_show_that_outputs_are_misread():
    model = seeded(lambda: nn.Conv1d(2, 3, 1))
    with pytest.raises(DataError, match=r"shape \(\d+, 7\).*read as 3 positions of 7 outputs.*movedim"):
        SLU(model, "classification").fit((torch.randn(40, 2, 7).double(), torch.zeros(40, 7, dtype=torch.long)))


def test_few_inputs_are_few_calibration_points_however_many_positions_they_have():
    model = seeded(Segmenter)
    with pytest.warns(CalibrationWarning, match="pixels of only 2 calibration inputs"):
        score = SLU(model, "classification").fit(pictures(), calibration=pictures(2, 5, seed=3)[0])
    with pytest.raises(SettingError, match=r"false_alarms=0.01 is below 0.333"):
        score.flag(pictures()[0], false_alarms=0.01)


def test_inputs_without_positions_that_count_have_no_score():
    model = seeded(Tagger)
    inputs, labels = texts()
    labels[::2] = -100
    score = SLU(model, "classification").fit((inputs, labels))
    for reduce in ("max", "mean", "sum"):
        assert bool(score((inputs, labels), reduce=reduce)[::2].isnan().all())
        assert bool(torch.tensor(score.threshold(0.2, reduce=reduce)).isfinite())
        assert not bool(score.flag((inputs, labels), reduce=reduce, false_alarms=0.2)[::2].any())


def test_standard_errors_are_of_single_positions():
    model = seeded(Tagger)
    batch = texts()
    score = SLU(model, "classification").fit(batch)
    _, errors = score(batch, reading="fisher", outputs=Probes(4), return_error=True)
    assert errors.shape == (48, 7)
    with pytest.raises(SettingError, match="of single positions"):
        score(batch, reading="fisher", outputs=Probes(4), return_error=True, reduce="sum")


def test_large_pictures_take_a_bounded_number_of_gradients():
    model = seeded(Segmenter)
    score = SLU(model, "classification").fit(pictures(40, 12))
    inputs, _ = pictures(3, 24, seed=7)
    assert score(inputs).shape == (3, 24, 24)
    assert score.cost_report(inputs).rows == 64


def test_lanczos_fits_positions_too():
    model = seeded(Tagger)
    batch = texts()
    score = SLU(model, "classification", rank=10, solver=Lanczos()).fit(batch)
    assert score(batch).shape == (48, 7)


@pytest.mark.parametrize("curvature", ["fisher", "empirical-fisher", "hessian"])
def test_other_curvatures_do_not_see_positions_without_a_target(curvature):
    """Whatever word stands there; a word that counts is seen."""
    model = seeded(lambda: Tagger(mixing=False))
    inputs, labels = texts()
    labels[:, 1] = -100
    changed, seen = inputs["input_ids"].clone(), inputs["input_ids"].clone()
    changed[:, 1], seen[:, 0] = (changed[:, 1] + 1) % 11, (seen[:, 0] + 1) % 11
    settings = {**EXACT, "rank": 10, "curvature": curvature}
    fits = [SLU(model, "classification", **settings).fit(({**inputs, "input_ids": ids}, labels), calibration=False)
            for ids in (inputs["input_ids"], changed, seen)]  # fmt: skip
    first, same, other = (fit.state.subspace.eigenvalues for fit in fits)
    if curvature != "fisher":  # its labels are drawn by the content of an input
        torch.testing.assert_close(torch.as_tensor(same), torch.as_tensor(first), rtol=1e-6, atol=1e-9)
    assert not torch.allclose(torch.as_tensor(other), torch.as_tensor(first), rtol=1e-3)


def test_batches_of_other_lengths_are_filled_up():
    model = seeded(Tagger)
    batch = texts()
    score = SLU(model, "classification").fit(batch)
    short = {name: each[:5, :4] for name, each in batch[0].items()}
    both = score([short, batch[0]])
    assert both.shape == (53, 7) and bool(both[:5, 4:].isnan().all())


def test_explain_and_reduce_say_what_they_are_for():
    model = seeded(Tagger)
    batch = texts()
    score = SLU(model, "classification").fit(batch)
    with pytest.raises(SettingError, match="positions, tokens or pixels"):
        score.explain(batch)
    with pytest.raises(SettingError, match=r"unknown reduce 'median'; valid are 'max', 'mean', 'sum'"):
        score(batch, reduce="median")
    plain = SLU(nn.Linear(4, 3), "classification").fit(torch.randn(60, 4))
    with pytest.raises(SettingError, match="one vector of outputs per input"):
        plain(torch.randn(3, 4), reduce="max")


def test_methods_without_positions_say_so():
    from slu.baselines import Mahalanobis

    model = seeded(Tagger)
    inputs, labels = texts()
    with pytest.raises(DataError, match=r"\(2, 7, 3\).*scored by SLU alone"):
        Mahalanobis(model, "classification").fit((inputs, labels[:, 0]))


def test_how_outputs_are_read_is_logged_once(caplog):
    model = seeded(Segmenter)
    with caplog.at_level(logging.INFO, logger="slu"):
        SLU(model, "classification").fit(pictures())
    said = [record.getMessage() for record in caplog.records if "are read as" in record.getMessage()]
    assert len(said) == 1 and "(batch, outputs, height, width)" in said[0]
