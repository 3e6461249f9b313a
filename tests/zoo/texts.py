"""Transformers of Hugging Face over padded sequences of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.utils.data import DataLoader

from zoo.entry import BATCH, CLASSES, IGNORED, POINTS, Entry, generator, per_input, seeded

VOCABULARY = 60
LONGEST = 7
_PADDING = 0
_FIRST_WORD = 3  # below it are the tokens that BERT and RoBERTa reserve

# Weights larger than those of an untrained model, whose outputs would hardly depend on the inputs.
_BERT: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "vocab_size": VOCABULARY, "max_position_embeddings": 24, "initializer_range": 0.2, "num_labels": CLASSES,
}  # fmt: skip
_GPT: dict[str, Any] = {
    "n_positions": 24, "n_layer": 2, "n_head": 2, "pad_token_id": _PADDING, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.2, "num_labels": CLASSES,
}  # fmt: skip


def sentences(seed: int = 0, vocabulary: int = VOCABULARY, longest: int = LONGEST) -> list[Tensor]:
    """Sequences of unequal lengths."""
    draw = generator(seed)
    lengths = torch.randint(longest // 2, longest + 1, (POINTS,), generator=draw).tolist()
    return [torch.randint(_FIRST_WORD, vocabulary, (length,), generator=draw) for length in lengths]


def padded(sequences: Iterable[Tensor], value: int) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(sequences), batch_first=True, padding_value=value)


def collate(examples: list[dict[str, Tensor]], padding: int = _PADDING) -> dict[str, Tensor]:
    """A batch as a user's collate function makes it: padded to its own longest sequence."""
    words = [example["input_ids"] for example in examples]
    labels = [example["labels"] for example in examples]
    return {
        "input_ids": padded(words, padding),
        "attention_mask": padded(map(torch.ones_like, words), 0),
        "labels": padded(labels, IGNORED) if labels[0].dim() else torch.stack(labels),
    }


def classified(padding: int = _PADDING) -> Callable[[nn.Module], DataLoader]:
    """A loader of sequences with one label each."""

    def loader(_: nn.Module) -> DataLoader:
        labels = torch.randint(CLASSES, (POINTS,), generator=generator(1))
        examples = [{"input_ids": words, "labels": label} for words, label in zip(sentences(), labels, strict=True)]
        return DataLoader(examples, BATCH, collate_fn=lambda some: collate(some, padding))  # type: ignore[arg-type]

    return loader


def tagged(_: nn.Module) -> DataLoader:
    """A loader of sequences with one label per token; the first token has none, as [CLS] has none."""
    draw = generator(1)
    examples = []
    for words in sentences():
        labels = torch.randint(CLASSES, words.shape, generator=draw)
        labels[0] = IGNORED
        examples.append({"input_ids": words, "labels": labels})
    return DataLoader(examples, BATCH, collate_fn=collate)  # type: ignore[arg-type]


def language(vocabulary: int, longest: int = LONGEST, batch: int = BATCH) -> Callable[[nn.Module], DataLoader]:
    """A loader for language modelling: the labels are the words, which the model shifts itself."""

    def loader(_: nn.Module) -> DataLoader:
        words = [torch.cat([each, each[:1]]) for each in sentences(2, vocabulary, longest)]  # two at least
        examples = [{"input_ids": each, "labels": each} for each in words]
        return DataLoader(examples, batch, collate_fn=collate)  # type: ignore[arg-type]

    return loader


def collated(_: nn.Module) -> DataLoader:
    """A loader with the collator of transformers over tokenized texts, as tutorials have it."""
    return DataLoader(tokenized(), BATCH, collate_fn=transformers.DataCollatorWithPadding(tokenizer()))  # type: ignore[arg-type]


def tokenized() -> list[dict[str, Any]]:
    """Texts after the tokenizer, of unequal lengths, each with its label."""
    labels = torch.randint(CLASSES, (POINTS,), generator=generator(1)).tolist()
    texts = [" ".join(f"word{word}" for word in words.tolist()) for words in sentences()]
    encode = tokenizer()
    return [{**encode(text), "label": label} for text, label in zip(texts, labels, strict=True)]


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of a vocabulary of words, built here."""
    words = {"[PAD]": 0, "[UNK]": 1, **{f"word{number}": number for number in range(2, VOCABULARY)}}
    built = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=built, pad_token="[PAD]", unk_token="[UNK]")


def per_token(batch: dict[str, Tensor]) -> Tensor:
    """One score per token that is neither padding nor without a label."""
    return batch["attention_mask"].bool() & (batch["labels"] != IGNORED)


def per_next_token(batch: dict[str, Tensor]) -> Tensor:
    """One score per token after which another one comes."""
    after = nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)
    return per_token({**batch, "labels": after})


def bert(head: str = "SequenceClassification", **settings: Any) -> nn.Module:
    return getattr(transformers, f"BertFor{head}")(transformers.BertConfig(**{**_BERT, **settings}))


def roberta() -> nn.Module:
    # Positions of RoBERTa are counted from the token of padding, which is 1.
    config = transformers.RobertaConfig(**_BERT, pad_token_id=1)
    return transformers.RobertaForSequenceClassification(config)


def distilbert() -> nn.Module:
    sizes = {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 24}
    config = transformers.DistilBertConfig(vocab_size=VOCABULARY, initializer_range=0.2, num_labels=CLASSES, **sizes)
    return transformers.DistilBertForSequenceClassification(config)


def gpt2(head: str, vocabulary: int = VOCABULARY, width: int = 16) -> nn.Module:
    config = transformers.GPT2Config(**_GPT, vocab_size=vocabulary, n_embd=width)
    return getattr(transformers, f"GPT2{head}")(config)


def t5(kind: str) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, num_labels=CLASSES,
        pad_token_id=0,
    )  # fmt: skip
    return getattr(transformers, f"T5{kind}")(config)


class Pooled(nn.Module):
    """A T5 encoder with a head of one's own, over the mean of the tokens that count."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = t5("EncoderModel")
        self.head = nn.Linear(16, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        counted = attention_mask[..., None]
        return self.head((hidden * counted).sum(1) / counted.sum(1))


def lora() -> nn.Module:
    """BERT with adapters that have been trained: the ones of a fresh model give zero."""
    adapted = get_peft_model(bert(), LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    return adapted


ENTRIES = {
    "bert": Entry(seeded(bert), classified(), per_input),
    "distilbert": Entry(seeded(distilbert), classified(), per_input),
    "roberta": Entry(seeded(roberta), classified(padding=1), per_input),
    "bert-tokens": Entry(seeded(lambda: bert("TokenClassification")), tagged, per_token),
    "gpt2": Entry(seeded(lambda: gpt2("ForSequenceClassification")), classified(), per_input),
    "gpt2-tokens": Entry(seeded(lambda: gpt2("ForTokenClassification")), tagged, per_token),
    "gpt2-language": Entry(seeded(lambda: gpt2("LMHeadModel", 200)), language(200), per_next_token),
    # A sketch of the default size takes most of a minute per loader; the doctor tries it, and "gpt2-language" has it.
    "gpt2-language-50257": Entry(
        seeded(lambda: gpt2("LMHeadModel", 50_257, 4)),
        language(50_257, 2, 7),
        per_next_token,
        settings={"rank": 4, "sketch_size": 300},
        slow=True,
    ),
    "t5-encoder": Entry(seeded(Pooled), classified(), per_input),
    # Its bias of relative positions is shared by all inputs, so that it takes the fallback for every token.
    "t5-tokens": Entry(seeded(lambda: t5("ForTokenClassification")), tagged, per_token, slow=True),
    "lora": Entry(seeded(lora), classified(), per_input, settings={"params": "lora"}),
    "data-collator": Entry(seeded(bert), collated, per_input),
}
