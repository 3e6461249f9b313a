"""One suite for everything that is called an operator: shape, dtype, device, `@` on (p,) and (p, c)."""

import pytest
import torch

from layouts import layout_of
from oracles import decaying, ggn, network
from slu.curvature import Curvature
from slu.errors import SluError
from slu.gradients import Network
from slu.likelihoods import Classification
from slu.parameters import select
from slu.sketches import SKETCHES, SketchSpec, build

P, S = 300, 40


def tensor(dtype):
    matrix = decaying(P, 20, 2).to(dtype)
    return matrix, matrix


def curvature(dtype):
    model, inputs = network("mlp")
    dense = ggn(model, inputs, "classification")
    model, inputs = model.to(dtype), inputs.to(dtype)
    return Curvature(Network(model, select(model)), Classification(), inputs), dense


def sketch(kind, dtype):
    size = P if kind == "identity" else S
    operator = build(SketchSpec(kind, P, size, seed=1, layout=layout_of(P)), dtype=dtype)
    return operator, operator @ torch.eye(P, dtype=dtype)


def adjoint(kind, dtype):
    operator, dense = sketch(kind, dtype)
    return operator.T, dense.T


OPERATORS = {"tensor": tensor, "curvature": curvature}
OPERATORS |= {f"sketch {kind}": lambda dtype, kind=kind: sketch(kind, dtype) for kind in SKETCHES}
OPERATORS |= {f"adjoint {kind}": lambda dtype, kind=kind: adjoint(kind, dtype) for kind in SKETCHES}


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture(params=OPERATORS)
def pair(request, dtype):
    """The operator and its dense matrix."""
    return OPERATORS[request.param](dtype)


def test_declares_shape_dtype_and_device(pair, dtype):
    operator, dense = pair
    assert tuple(operator.shape) == tuple(dense.shape)
    assert operator.dtype == dtype
    assert operator.device == torch.device("cpu")


@pytest.mark.parametrize("columns", [None, 1, 3])
def test_multiplies_vectors_and_columns(pair, dtype, columns):
    operator, dense = pair
    shape = (operator.shape[1],) if columns is None else (operator.shape[1], columns)
    vector = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    before = vector.clone()
    found = operator @ vector
    wanted = dense.double() @ vector.double()
    assert found.shape == wanted.shape
    assert found.dtype == dtype
    assert torch.equal(vector, before)
    # Products of a few hundred numbers: √p ε of the longest row, with room for transforms and networks.
    bound = 100 * torch.finfo(dtype).eps * float(dense.double().norm() * vector.double().norm(dim=0).max())
    assert float((found - wanted).abs().max()) < bound


def test_is_linear_and_does_not_return_its_argument(pair, dtype):
    operator, dense = pair
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(operator.shape[1], generator=generator, dtype=dtype) for _ in range(2))
    together = operator @ (2 * first - second)
    apart = 2 * (operator @ first) - operator @ second
    bound = 100 * torch.finfo(dtype).eps * float(dense.double().norm() * (2 * first.norm() + second.norm()))
    assert float((together - apart).abs().max()) < bound
    # Lanczos works on the result in place.
    assert (operator @ first).data_ptr() != first.data_ptr()


@pytest.mark.parametrize("shape", [(P + 1,), (), (2, 2, 2)])
@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "tensor"])
def test_refuses_other_shapes(name, shape):
    operator, _ = OPERATORS[name](torch.float32)
    with pytest.raises(SluError):
        operator @ torch.zeros(shape)
