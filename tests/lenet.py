"""The paper's network for FashionMNIST, of 44,426 parameters: a size for which budgets and plans are known."""

from torch import Tensor, nn


class LeNet(nn.Module):
    """Two 5×5 convolutions, each pooled by two, and three linear layers, with tanh; images (b, 1, 28, 28)."""

    def __init__(self, outputs: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.MaxPool2d(2)
        )
        self.head = nn.Sequential(nn.Linear(256, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, outputs))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))
