"""A score of one input exists only where the network is a function of one input."""

import numpy as np
import pytest
import torch
from torch import nn

from shorthand import paper_slu
from slu import SLU, DiagonalScale, Lanczos, Stream
from slu.errors import DataError, ModelError, SettingError
from slu.likelihoods import Classification


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


@pytest.fixture
def inputs():
    return torch.randn(20, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("solver", ["stream", "lanczos"])
def test_statistics_over_the_batch_are_refused_before_the_fit_is_paid_for(model, inputs, solver):
    seen = []

    def centred(called, x):
        seen.append(len(x))
        return called(x - x.mean(0))

    with pytest.raises(ModelError, match="rest of its batch"):
        SLU(model, "classification", rank=5, forward=centred, solver=solver).fit(inputs)
    assert len(seen) < 5


def test_a_shared_input_as_long_as_the_batch_is_refused_at_the_query(model):
    """A mask (5, 5) shared by all looks like one row a point only in a batch of five."""
    mixing = torch.eye(5) + 0.5

    def call(called, batch):
        return called((batch["mix"] @ batch["x"]).mean(1))

    def batch(points):
        x = torch.randn(points, 5, 8, generator=torch.Generator().manual_seed(2))
        return {"x": x, "mix": mixing if points != 5 else torch.randn(5, 5, generator=torch.Generator().manual_seed(3))}

    score = SLU(model, "classification", rank=5, forward=call).fit([batch(7)])
    assert score(batch(6)).shape == (6,)
    with pytest.raises(ModelError, match="shared by all points"):
        score(batch(5))


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_model_that_squeezes_scores_a_single_point_as_in_a_batch(inputs, outputs):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, outputs)).double()
    data = inputs.double()
    call = {"forward": lambda called, x: called(x).squeeze()}
    score = SLU(model, "regression", rank=5, **call).fit([data[:19], data[19:]])
    together = score(data)
    assert torch.allclose(torch.cat([score(data[i : i + 1]) for i in range(20)]), together, rtol=1e-10)


def test_weights_that_broke_after_construction_are_named(model, inputs):
    method = SLU(model, "classification", rank=5, params="2.*")
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    with pytest.raises(ModelError, match=r"0\.weight holds NaN"):
        method.fit(inputs)


def test_a_batch_as_a_data_loader_yields_it_is_not_two_batches(model, inputs):
    score = SLU(model, "classification", rank=5).fit(inputs)
    assert torch.equal(score([inputs, torch.zeros(20, dtype=torch.long)]), score(inputs))
    assert len(score([inputs[:10], inputs[10:]])) == 20, "a list of two batches stays one"


def test_data_sets_are_told_how_and_arrays_are_taken(model, inputs):
    method = SLU(model, "classification", rank=5)
    with pytest.raises(DataError, match="DataLoader"):
        method.fit(torch.utils.data.TensorDataset(inputs))
    assert torch.equal(method.fit(inputs.numpy().astype("float64"))(inputs), method.fit(inputs)(inputs))


@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        ({"solver": "lanczos"}, 12),
        ({"solver": "lanczos", "curvature": "fisher"}, 4),
        ({"solver": "lanczos", "curvature": "empirical-fisher"}, 4),
        ({}, 4),
        ({"solver": Stream(labels_per_point=2)}, 8),
        ({"solver": Stream(labels_per_point="all")}, 12),
        ({"curvature": "fisher"}, 4),
        ({"curvature": "empirical-fisher"}, 4),
    ],
)
def test_the_rank_that_data_allow_depends_on_the_curvature(model, inputs, settings, bound):
    data = (inputs[:4], torch.tensor([0, 1, 2, 0]))
    message = f"rank {bound} at most" if settings.get("solver") == "lanczos" else f"4 points give {bound} gradients"
    with pytest.raises(SettingError, match=message):
        SLU(model, "classification", rank=bound + 1, **settings).fit(data)
    assert SLU(model, "classification", rank=bound, **settings).fit(data).diagnostics.effective_rank > 0


def test_whole_numbers_of_any_type_and_nothing_else(model):
    assert SLU(model, "classification", rank=np.int64(5)).rank == 5
    for settings in ({"rank": 2.5}, {"sketch_size": 100.0}):
        with pytest.raises(SettingError, match="whole number"):
            SLU(model, "classification", **settings)
    for broken in (
        lambda: Lanczos(precondition="1"),
        lambda: Stream(oversampling=1.5),
        lambda: DiagonalScale(points=2.0),
    ):
        with pytest.raises(SettingError, match="whole number"):
            broken()


def test_not_a_module_and_not_an_instance(model):
    with pytest.raises(ModelError, match=r"torch\.nn\.Module"):
        SLU(lambda x: x, "classification")
    with pytest.raises(SettingError, match="unknown likelihood"):
        SLU(model, Classification)


def test_an_exact_score_may_have_full_rank():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(3, 1).double()
    data = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    score = paper_slu(model, "regression", rank=4).fit(data)
    assert float(score(data).abs().max()) < 1e-12, "four directions pin down four parameters"
