"""Small networks, each with one trap that real networks set."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class NoForwardMode(torch.autograd.Function):
    """tanh as people write their own operations: without jvp, without a rule for vmap."""

    @staticmethod
    def forward(ctx, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return inputs.tanh()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (inputs,) = ctx.saved_tensors
        return gradient * (1 - inputs.tanh().square())


class Layers(nn.Module):
    """Linear, something in the middle, linear: 4 inputs, 3 outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.middle(self.into(inputs)))

    def middle(self, hidden: Tensor) -> Tensor:
        return hidden.tanh()


class CustomFunction(Layers):
    def middle(self, hidden: Tensor) -> Tensor:
        return NoForwardMode.apply(hidden)


class ControlFlow(Layers):
    def middle(self, hidden: Tensor) -> Tensor:
        return hidden.tanh() if hidden.sum() > 0 else hidden.sin()


class Checkpointed(Layers):
    def middle(self, hidden: Tensor) -> Tensor:
        return checkpoint(torch.tanh, hidden, use_reentrant=False)


class InPlace(Layers):
    def middle(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.relu_(hidden)


class ChangesInputs(Layers):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.sub_(1.0).mul_(0.5))


class IgnoresEval(Layers):
    """Noise in eval mode: no function of one input."""

    def middle(self, hidden: Tensor) -> Tensor:
        # Not torch's own random state, which every pass would put back.
        self.noise = getattr(self, "noise", torch.Generator().manual_seed(0))
        return hidden.tanh() + torch.randn(hidden.shape, generator=self.noise, dtype=hidden.dtype)


class Dropout(Layers):
    def middle(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.dropout(hidden, 0.5, training=True)


class WritesBuffer(Layers):
    """Counts and averages in eval mode, in place and by assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("average", torch.zeros(5))
        self.register_buffer("latest", torch.zeros(5), persistent=False)

    def middle(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        self.average.mul_(0.9).add_(hidden.detach().mean(0))
        self.latest = hidden.detach().mean(0)
        return hidden.tanh()


class Sparse(nn.Module):
    """Words to three outputs through an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4, sparse=True)
        self.out = nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.words(words).mean(1).tanh())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.out(self.lstm(sequence)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.out(self.attention(sequence, sequence, sequence, need_weights=False)[0].mean(1))


class TwoInputs(Layers):
    """Takes a second tensor, one number shared by all points, and a flag that is no tensor."""

    def forward(self, left: Tensor, right: Tensor, scale: Tensor | None = None, flip: bool = False) -> Tensor:
        outputs = super().forward(left * right)
        outputs = outputs if scale is None else outputs * scale
        return outputs.flip(1) if flip else outputs


def weight_normed() -> nn.Module:
    norm = nn.utils.parametrizations
    return nn.Sequential(norm.weight_norm(nn.Linear(4, 5)), nn.Tanh(), norm.spectral_norm(nn.Linear(5, 3)))


def build(kind: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """A float64 network in training mode and 12 inputs for it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "sparse":
            return Sparse().double().train(), torch.randint(7, (12, 5))
        model = _KINDS[kind]().double().train()
        shape = (12, 6, 4) if kind in ("recurrent", "attention") else (12, 4)
        return model, torch.randn(shape, dtype=torch.float64)


_KINDS = {
    "custom function": CustomFunction,
    "control flow": ControlFlow,
    "checkpointed": Checkpointed,
    "in place": InPlace,
    "changes inputs": ChangesInputs,
    "ignores eval": IgnoresEval,
    "dropout": Dropout,
    "writes buffer": WritesBuffer,
    "recurrent": Recurrent,
    "attention": Attention,
    "two inputs": TwoInputs,
    "weight norm": weight_normed,
}
