"""The paper's numbers: AUROC and its standard deviation over networks, typed from its tables.

Each block is one setting and budget: a line of outside sets, then a line per method; "-" stands for what
is not reported. Rotated, corrupted and held-out sets are means over their members.
"""

from __future__ import annotations

from slu_experiments.settings.table import Reported

_BLOCKS = {
    ("mnist-mlp", "3p"): """
        .       fmnist        kmnist        mnist-rotated
        slu     0.26 ± 0.02   0.42 ± 0.04   0.59 ± 0.02
        lla     0.27 ± 0.03   0.30 ± 0.03   0.49 ± 0.01
        lla-d   0.94 ± 0.03   0.98 ± 0.01   0.73 ± 0.01
        le      0.27 ± 0.03   0.30 ± 0.03   0.49 ± 0.01
        le-h    0.27 ± 0.03   0.30 ± 0.03   0.49 ± 0.01
        scod    0.27 ± 0.03   0.31 ± 0.03   0.51 ± 0.01
        swag    0.29 ± 0.05   0.19 ± 0.02   0.41 ± 0.03
        de      0.94 ± 0.04   0.96 ± 0.00   0.71 ± 0.02
    """,
    ("fmnist-lenet", "3p"): """
        .       mnist         fmnist-rotated
        slu     0.94 ± 0.01   0.74 ± 0.03
        lla     0.80 ± 0.03   0.70 ± 0.03
        lla-d   0.68 ± 0.07   0.61 ± 0.05
        le      0.80 ± 0.03   0.70 ± 0.03
        le-h    0.80 ± 0.03   0.70 ± 0.03
        scod    0.84 ± 0.02   0.71 ± 0.03
        swag    0.75 ± 0.02   0.70 ± 0.04
        de      0.92 ± 0.01   0.79 ± 0.02
    """,
    ("cifar10-resnet", "3p"): """
        .       svhn          cifar100      cifar10-corrupted
        slu     0.76 ± 0.05   0.54 ± 0.02   0.57 ± 0.04
        lla     0.67 ± 0.07   0.54 ± 0.02   0.57 ± 0.05
        lla-d   0.55 ± 0.10   0.52 ± 0.02   0.52 ± 0.04
        le      0.67 ± 0.07   0.54 ± 0.02   0.57 ± 0.05
        le-h    0.66 ± 0.07   0.54 ± 0.02   0.57 ± 0.05
        scod    0.68 ± 0.07   0.54 ± 0.02   0.58 ± 0.04
        swag    0.48 ± 0.11   0.49 ± 0.01   0.52 ± 0.06
        de      0.46 ± 0.02   0.51 ± 0.00   0.50 ± 0.01
    """,
    ("celeba-van", "3p"): """
        .       food101        celeba-held-out
        slu     0.95 ± 0.003   0.72 ± 0.02
        lla     0.93 ± 0.001   0.67 ± 0.02
        lla-d   0.80 ± 0.02    0.52 ± 0.03
        le      0.93 ± 0.001   0.67 ± 0.02
        le-h    0.91 ± 0.002   0.64 ± 0.03
        scod    0.94 ± 0.00    0.68 ± 0.02
        swag    0.69 ± 0.04    0.46 ± 0.04
        de      0.88 ± 0.02    0.63 ± 0.02
    """,
    ("imagenet-swin", "3p"): """
        .       imagenet-castle imagenet-flamingo imagenet-lighter imagenet-odometer
        slu     0.57  0.64  0.63  0.37
        lla     0.49  0.56  0.59  0.41
        lla-d   0.51  0.54  0.52  0.32
        le      0.51  0.58  0.62  0.41
        le-h    0.50  0.57  0.60  0.41
        scod    -     -     -     -
        swag    0.46  0.54  0.55  0.52
        de      -     -     -     -
        .       imagenet-parachute imagenet-pineapple imagenet-triceratops imagenet-volcano
        slu     0.70  0.56  0.69  0.83
        lla     0.56  0.45  0.67  0.78
        lla-d   0.45  0.48  0.68  0.70
        le      0.59  0.47  0.67  0.80
        le-h    0.57  0.47  0.67  0.80
        scod    -     -     -     -
        swag    0.44  0.36  0.64  0.72
        de      -     -     -     -
    """,
    ("mnist-mlp", "10p"): """
        .       fmnist        kmnist        mnist-rotated
        slu     0.28 ± 0.02   0.46 ± 0.04   0.61 ± 0.02
        lla     0.27 ± 0.03   0.34 ± 0.03   0.52 ± 0.01
        lla-d   0.94 ± 0.03   0.98 ± 0.01   0.73 ± 0.01
        le      0.27 ± 0.03   0.34 ± 0.03   0.52 ± 0.01
        le-h    0.27 ± 0.03   0.34 ± 0.03   0.52 ± 0.01
        scod    0.27 ± 0.02   0.36 ± 0.03   0.54 ± 0.01
        swag    0.26 ± 0.05   0.18 ± 0.03   0.39 ± 0.03
        de      0.90          1.00          0.79
    """,
    ("fmnist-lenet", "10p"): """
        .       mnist         fmnist-rotated
        slu     0.95 ± 0.01   0.75 ± 0.03
        lla     0.88 ± 0.03   0.72 ± 0.03
        lla-d   0.68 ± 0.06   0.61 ± 0.04
        le      0.88 ± 0.03   0.72 ± 0.03
        le-h    0.88 ± 0.03   0.72 ± 0.03
        scod    0.89 ± 0.02   0.72 ± 0.03
        swag    0.77 ± 0.04   0.72 ± 0.04
        de      0.99          0.90
    """,
    ("cifar10-resnet", "10p"): """
        .       svhn          cifar100      cifar10-corrupted
        slu     0.76 ± 0.06   0.54 ± 0.02   0.57 ± 0.04
        lla     0.72 ± 0.06   0.53 ± 0.02   0.57 ± 0.04
        lla-d   0.55 ± 0.10   0.52 ± 0.02   0.52 ± 0.04
        le      0.72 ± 0.06   0.53 ± 0.02   0.57 ± 0.04
        le-h    0.72 ± 0.07   0.53 ± 0.02   0.57 ± 0.04
        scod    0.75 ± 0.05   0.54 ± 0.02   0.58 ± 0.04
        swag    0.52 ± 0.06   0.44 ± 0.02   0.51 ± 0.05
        de      0.45          0.51          0.50
    """,
    ("celeba-van", "10p"): """
        .       food101        celeba-held-out
        slu     0.95 ± 0.003   0.72 ± 0.02
        lla     0.94 ± 0.001   0.70 ± 0.02
        lla-d   0.80 ± 0.02    0.52 ± 0.03
        le      0.94 ± 0.001   0.70 ± 0.02
        le-h    0.93 ± 0.002   0.67 ± 0.02
        scod    0.94 ± 0.002   0.70 ± 0.02
        swag    0.78 ± 0.13    0.55 ± 0.09
        de      0.96           0.68
    """,
}

METHODS = ("slu", "lla", "lla-d", "le", "le-h", "scod", "swag", "de")
"""The paper's rows, in its order."""


def _parsed(block: str) -> dict[str, dict[str, Reported]]:
    """By method, then by outside set."""
    rows: dict[str, dict[str, Reported]] = {}
    sets: list[str] = []
    for line in block.strip().splitlines():
        name, *cells = line.replace("± ", "±").split()
        if name == ".":
            sets = cells
            continue
        numbers: list[Reported | None] = []
        for cell in cells:
            if cell.startswith("±"):
                last = numbers[-1]
                assert last is not None
                numbers[-1] = Reported(last.mean, float(cell[1:]))
            else:
                numbers.append(None if cell == "-" else Reported(float(cell)))
        row = rows.setdefault(name, {})
        row |= {each: number for each, number in zip(sets, numbers, strict=True) if number is not None}
    return rows


PAPER: dict[tuple[str, str], dict[str, dict[str, Reported]]] = {key: _parsed(block) for key, block in _BLOCKS.items()}
"""PAPER[setting, budget][method][outside set]."""


def reported(setting: str, budget: str, method: str | None, outside: str) -> Reported | None:
    """What the paper has there; None where it has nothing.

    >>> print(reported("fmnist-lenet", "3p", "slu", "mnist"))
    0.94 ± 0.01
    """
    if method is None:
        return None
    return PAPER.get((setting, budget), {}).get(method, {}).get(outside)
