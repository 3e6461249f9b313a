"""The demo's picture: the score beside a baseline, and the images at both of its ends."""

from __future__ import annotations

from pathlib import Path

import torch

from slu.experiments.demo import HELD_OUT, INSIDE, TURNED, UNSEEN, Judged
from slu.experiments.figures import Panel, Strip, Thumbnail, draw_scores

_NAMES = " and ".join(map(str, HELD_OUT))
_LABELS = {
    INSIDE: "digits it knows\n(test images)",
    UNSEEN: f"digits it never\nsaw ({_NAMES})",
    TURNED: "digits turned\nby 90°",
}
_SHOWN = 14
_SCORE = "SLU combined"


def draw(judged: Judged, path: Path) -> None:
    """Write the picture.

    SLU's default reading stands beside the largest logit: the one measures how far the prediction
    could change and how much of that the data leave open, the other is what the network itself believes.
    """
    draw_scores(
        path,
        title=f"A network that never saw {_NAMES}: which images should one not trust it on?",
        sets=[_LABELS[group] for group in judged.sets],
        panels=[
            _panel(judged, _SCORE, "How unsure SLU is", "SLU's score, combined   (larger: less sure →)"),
            _panel(
                judged,
                "max logit",
                "How unsure the network believes it is",
                "minus the largest logit   (larger: less sure →)",
            ),
        ],
        strips=_strips(judged),
    )


def _panel(judged: Judged, score: str, title: str, axis: str) -> Panel:
    return Panel(title, axis, [values.numpy() for values in judged.scores[score].values()])


def _strips(judged: Judged) -> list[Strip]:
    values = torch.cat(list(judged.scores[_SCORE].values()))
    thumbnails = [
        Thumbnail(image[0].numpy(), _caption(group, int(digit)), position)
        for position, (group, points) in enumerate(judged.sets.items())
        for image, digit in zip(points.images, points.digits, strict=True)
    ]
    order = values.argsort().tolist()
    return [
        Strip("Of all these images, SLU is surest of …", [thumbnails[i] for i in order[:_SHOWN]]),
        Strip("… and least sure of", [thumbnails[i] for i in order[: -_SHOWN - 1 : -1]]),
    ]


def _caption(group: str, digit: int) -> str:
    return {INSIDE: f"{digit}", UNSEEN: f"{digit}, unseen", TURNED: f"{digit}, turned"}[group]
