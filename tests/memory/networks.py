"""Networks of several kinds at any number of parameters, with activations that are small beside them in most."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

OUTPUTS = 10


def mlp(parameters: int) -> tuple[nn.Module, Tensor]:
    """Four square layers between 100 inputs and the outputs."""
    width = math.isqrt(parameters // 4)
    layers: list[nn.Module] = [nn.Linear(100, width), nn.Tanh()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, OUTPUTS)), torch.randn(2, 100)


def conv(parameters: int) -> tuple[nn.Module, Tensor]:
    """Four 3×3 convolutions with BatchNorm, the width doubled once, on 4×4 images."""
    width = math.isqrt(parameters // 63)
    channels = [3, width, width, 2 * width, 2 * width]
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, OUTPUTS)]
    return nn.Sequential(*layers, *head), torch.randn(2, 3, 4, 4)


def wide_conv(parameters: int) -> tuple[nn.Module, Tensor]:
    """Three 5×5 convolutions, of which the second has most of the parameters, on 16×16 images."""
    width = math.isqrt(parameters // 75)
    layers: list[nn.Module] = []
    for before, after in pairwise([3, width, 2 * width, width // 2]):
        layers += [nn.Conv2d(before, after, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * (width // 2), OUTPUTS)), torch.randn(2, 3, 16, 16)


class Encoder(nn.Module):
    """Some encoder layers over tokens, the mean of which is classified, or every one of them."""

    def __init__(self, width: int, words: int = 50, layers: int = 4, *, tagging: bool = False) -> None:
        super().__init__()
        self.tagging = tagging
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, OUTPUTS)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.layers(self.embed(tokens))
        return self.head(hidden if self.tagging else hidden.mean(1))


def transformer(parameters: int) -> tuple[nn.Module, Tensor]:
    """Twelve squares of the width a layer."""
    width = 4 * (math.isqrt(parameters // 48) // 4)
    return Encoder(width), torch.randint(0, 50, (2, 6))


def words(parameters: int) -> tuple[nn.Module, Tensor]:
    """Two layers and a table of fifty words per number of the width, on 64 tokens."""
    width = 4 * (math.isqrt(parameters // 74) // 4)
    return Encoder(width, 50 * width, 2), torch.randint(0, 50 * width, (2, 64))


def _tagger(parameters: int, length: int) -> tuple[nn.Module, Tensor]:
    width = 4 * (math.isqrt(parameters // 48) // 4)
    return Encoder(width, tagging=True), torch.randint(0, 50, (2, length))


def tagger(parameters: int) -> tuple[nn.Module, Tensor]:
    """The transformer with outputs at each of 16 tokens."""
    return _tagger(parameters, 16)


def long_tagger(parameters: int) -> tuple[nn.Module, Tensor]:
    """The same at each of 100 tokens, more than are measured one by one."""
    return _tagger(parameters, 100)


class Recurrent(nn.Module):
    """Two layers of an LSTM over a sequence of vectors, the last state of which is classified."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.LSTM(64, width, 2, batch_first=True)
        self.head = nn.Linear(width, OUTPUTS)

    def forward(self, sequences: Tensor) -> Tensor:
        return self.head(self.layers(sequences)[0][:, -1])


def lstm(parameters: int) -> tuple[nn.Module, Tensor]:
    """Twelve squares of the width, on sequences of 20 vectors of 64 numbers."""
    return Recurrent(math.isqrt(parameters // 12)), torch.randn(2, 20, 64)


def mobile(parameters: int) -> tuple[nn.Module, Tensor]:
    """Six blocks of depthwise 3×3 and pointwise convolutions with BatchNorm, on 32×32 images."""
    width = 8 * (math.isqrt(parameters // 44) // 8)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
    steps = [(width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2), (4 * width, 1), (4 * width, 1)]
    before = width
    for after, stride in steps:
        layers += [nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False), nn.BatchNorm2d(before)]
        layers += [nn.ReLU6(), nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU6()]
        before = after
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, OUTPUTS)]
    return nn.Sequential(*layers, *head), torch.randn(2, 3, 32, 32)


class Recommender(nn.Module):
    """Tables of users and items, their vectors joined and passed through three layers."""

    def __init__(self, users: int, width: int = 64) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(users, width)
        layers = [nn.Linear(3 * width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, OUTPUTS)]
        self.layers = nn.Sequential(*layers)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        return self.layers(torch.cat([user, item, user * item], 1))


def recommender(parameters: int) -> tuple[nn.Module, Tensor]:
    """Nearly all parameters in the two tables."""
    users = (parameters - 83_594) // 128
    return Recommender(users), torch.randint(0, users, (2, 2))


class Block(nn.Module):
    """Causal attention and a perceptron, each after a norm and added to what it was given."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        each = self.attend(self.norms[0](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*each, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norms[1](x))


class Decoder(nn.Module):
    """Three blocks over words and their positions, of which the last is classified."""

    def __init__(self, width: int, words: int = 1000, length: int = 32) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)), nn.LayerNorm(width))
        self.head = nn.Linear(width, OUTPUTS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(tokens) + self.positions)[:, -1])


def decoder(parameters: int) -> tuple[nn.Module, Tensor]:
    """36 squares of the width and a thousand words, on 32 tokens."""
    width = 4 * round((math.sqrt(1000**2 + 144 * parameters) - 1000) / 72 / 4)
    return Decoder(width), torch.randint(0, 1000, (2, 32))


class Hourglass(nn.Module):
    """3×3 convolutions down to a quarter and back up beside what was there before.

    The mean of which is classified, or every pixel.
    """

    def __init__(self, width: int, *, pixels: bool = False) -> None:
        super().__init__()

        def pair(before: int, after: int) -> nn.Module:
            first, second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
            return nn.Sequential(first, nn.GroupNorm(4, after), nn.ReLU(), second, nn.GroupNorm(4, after), nn.ReLU())

        self.down = nn.ModuleList([pair(3, width), pair(width, 2 * width), pair(2 * width, 4 * width)])
        self.up = nn.ModuleList([pair(6 * width, 2 * width), pair(3 * width, width)])
        self.pixels = pixels
        self.head = nn.Conv2d(width, OUTPUTS, 1) if pixels else nn.Linear(width, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        passed = []
        for number, layer in enumerate(self.down):
            x = layer(x if number == 0 else nn.functional.max_pool2d(x, 2))
            passed.append(x)
        for layer, beside in zip(self.up, passed[-2::-1], strict=True):
            x = layer(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), beside], 1))
        return self.head(x if self.pixels else x.mean((2, 3)))


def unet(parameters: int) -> tuple[nn.Module, Tensor]:
    """About 430 squares of the width, on 16×16 images."""
    return Hourglass(4 * (math.isqrt(parameters // 430) // 4)), torch.randn(2, 3, 16, 16)


def segmenter(parameters: int) -> tuple[nn.Module, Tensor]:
    """The U-Net with outputs at each of 16×16 pixels."""
    return Hourglass(4 * (math.isqrt(parameters // 430) // 4), pixels=True), torch.randn(2, 3, 16, 16)


class Gated(nn.Module):
    """A bidirectional GRU over embedded tokens, the mean of whose states is classified."""

    def __init__(self, width: int, words: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 64)
        self.layer = nn.GRU(64, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, OUTPUTS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(tokens))[0].mean(1))


def gru(parameters: int) -> tuple[nn.Module, Tensor]:
    """Six squares of the width, on 24 tokens."""
    width = math.isqrt((parameters - 64_000) // 6 + 34**2) - 34
    return Gated(width), torch.randint(0, 1000, (2, 24))


class Next(nn.Module):
    """A 7×7 depthwise convolution, a norm and a perceptron over channels, added to what it was given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.perceptron(self.norm(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def depthwise(parameters: int) -> tuple[nn.Module, Tensor]:
    """Four blocks as of ConvNeXt after patches of 4×4, on 32×32 images."""
    width = 4 * (math.isqrt(parameters // 33) // 4)
    blocks = [Next(width) for _ in range(4)]
    layers = [nn.Conv2d(3, width, 4, 4), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, OUTPUTS)]
    return nn.Sequential(*layers), torch.randn(2, 3, 32, 32)


class Bag(nn.Module):
    """The mean of embedded words and two layers."""

    def __init__(self, words: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, OUTPUTS))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.embed(tokens).mean(1))


def bag(parameters: int) -> tuple[nn.Module, Tensor]:
    """Nearly all parameters in the table, on 100 words."""
    words = (parameters - 4_810) // 64
    return Bag(words), torch.randint(0, words, (2, 100))


class SummedBag(nn.Module):
    """The same by torch's own step for bags, which has no graph rule."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(words, width, mode="mean")
        self.head = nn.Linear(width, OUTPUTS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


def summed_bag(parameters: int) -> tuple[nn.Module, Tensor]:
    """A table of 32 numbers per word, on 50 words."""
    words = (parameters - 330) // 32
    return SummedBag(words), torch.randint(0, words, (2, 50))


class Patches(nn.Module):
    """A vision transformer: patches of 4×4, a class token and learned positions before three encoder layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.randn(1, 65, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, OUTPUTS)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.token.expand(len(images), -1, -1), patches], 1) + self.positions
        return self.head(self.layers(hidden)[:, 0])


def vision(parameters: int) -> tuple[nn.Module, Tensor]:
    """36 squares of the width, on 32×32 images."""
    return Patches(4 * (math.isqrt(parameters // 37) // 4)), torch.randn(2, 3, 32, 32)


class Raised(nn.Module):
    """A U-Net with BatchNorm that goes up by transposed convolutions, which have no graph rule."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())

        self.first, self.second, self.third = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)]
        )
        self.fourth, self.fifth = block(4 * width, 2 * width), block(2 * width, width)
        self.head = nn.Linear(width, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x)
        two = self.second(nn.functional.max_pool2d(one, 2))
        three = self.third(nn.functional.max_pool2d(two, 2))
        two = self.fourth(torch.cat([self.up[0](three), two], 1))
        return self.head(self.fifth(torch.cat([self.up[1](two), one], 1)).mean((2, 3)))


def raised(parameters: int) -> tuple[nn.Module, Tensor]:
    """About 222 squares of the width, on 16×16 images."""
    return Raised(math.isqrt(parameters // 222)), torch.randn(2, 3, 16, 16)


class Phrases(nn.Module):
    """Convolutions over three, four and five embedded words, of every channel the largest result."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(words, 128), nn.Linear(300, OUTPUTS)
        self.layers = nn.ModuleList(nn.Conv1d(128, 100, length) for length in (3, 4, 5))

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embed(tokens).transpose(1, 2)
        return self.head(torch.cat([layer(embedded).relu().amax(2) for layer in self.layers], 1))


def phrases(parameters: int) -> tuple[nn.Module, Tensor]:
    """Nearly all parameters in the table, on 50 words."""
    words = (parameters - 156_910) // 128
    return Phrases(words), torch.randint(0, words, (2, 50))


class Repeated(Encoder):
    """One encoder layer that is applied four times, with the same weights."""

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for _ in range(4):
            hidden = self.layers(hidden)
        return self.head(hidden.mean(1))


def repeated(parameters: int) -> tuple[nn.Module, Tensor]:
    """Twelve squares of the width and a thousand words, on 48 tokens."""
    width = 4 * (math.isqrt(parameters // 12 + 42**2) // 4) - 40
    return Repeated(width, 1000, 1), torch.randint(0, 1000, (2, 48))


class WideAndDeep(nn.Module):
    """Tables of eight columns of a data set: their vectors through layers with BatchNorm, and a number each beside."""

    def __init__(self, rows: int, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(8))
        self.wide = nn.ModuleList(nn.Embedding(rows, OUTPUTS) for _ in range(8))
        layers = [nn.Linear(8 * width, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256), nn.BatchNorm1d(256)]
        self.deep = nn.Sequential(*layers, nn.ReLU(), nn.Linear(256, OUTPUTS))

    def forward(self, columns: Tensor) -> Tensor:
        deep = torch.cat([table(column) for table, column in zip(self.tables, columns.T, strict=True)], 1)
        return self.deep(deep) + sum(table(column) for table, column in zip(self.wide, columns.T, strict=True))


def wide_and_deep(parameters: int) -> tuple[nn.Module, Tensor]:
    """Most of the parameters in sixteen tables."""
    rows = max(2, (parameters - 202_000) // 208)
    return WideAndDeep(rows), torch.randint(0, rows, (2, 8))


NETWORKS = {
    each.__name__: each
    for each in (
        mlp, conv, wide_conv, transformer, words, lstm, mobile, recommender, decoder, unet,
        tagger, long_tagger, segmenter,
        gru, depthwise, bag, summed_bag, vision, raised, wide_and_deep, phrases, repeated,
    )
}  # fmt: skip
