"""Models inside of what people train them with: compiled, distributed, a Trainer's or Lightning's."""

from __future__ import annotations

import tempfile

import pytorch_lightning
import torch
import transformers
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from zoo import plain, texts
from zoo.entry import Entry, per_input, seeded


def compiled() -> nn.Module:
    """Compiled by a backend that runs the graph as it is, so that no compiler is needed."""
    return torch.compile(plain.perceptron(), backend="eager")  # type: ignore[return-value]


def distributed_model() -> nn.Module:
    return DistributedDataParallel(plain.perceptron())


class Lightning(pytorch_lightning.LightningModule):
    """A module of Lightning with its loader and its training step."""

    def __init__(self) -> None:
        super().__init__()
        self.network = plain.perceptron()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network(inputs)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self) -> DataLoader:
        return plain.rows(self)


def trainer_loader(model: nn.Module) -> DataLoader:
    """What transformers' Trainer trains on; it shuffles."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=texts.BATCH, use_cpu=True, report_to=[]
        )
        collator = transformers.DataCollatorWithPadding(texts.tokenizer())
        trainer = transformers.Trainer(model, arguments, collator, train_dataset=texts.tokenized())  # type: ignore[arg-type]
        return trainer.get_train_dataloader()


ENTRIES = {
    "compiled": Entry(seeded(compiled), plain.rows, per_input),
    "distributed": Entry(seeded(distributed_model), plain.rows, per_input),
    "trainer": Entry(seeded(texts.bert), trainer_loader, per_input, shuffled=True),
    "lightning": Entry(seeded(Lightning), lambda model: model.train_dataloader(), per_input),  # type: ignore[operator]
}
