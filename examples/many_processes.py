"""The same fit by several processes: start it with torchrun, and every process reads its part of the data.

    pip install '.[demo]'
    torchrun --nproc-per-node 2 examples/many_processes.py [FILE.safetensors]

Without torchrun it is the fit of one process, and prints the same numbers. A small network learns the digits 0 to 7;
SLU is fitted to it and asked about fresh digits, and about 8 and 9, which it has never seen.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from slu import SLU
from slu.cli.demo_steps import load_digits

FALSE_ALARMS = 0.05


def dealt_out(data: TensorDataset, batch_size: int) -> DataLoader:
    """This process' part of the data, as for training; all of it where there is one process."""
    sampler = DistributedSampler(data, shuffle=False) if distributed.is_initialized() else None
    return DataLoader(data, batch_size, sampler=sampler)


def trained(data: TensorDataset, epochs: int = 25) -> nn.Module:
    """A network with the same weights in every process; yours comes from a file."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(epochs):
        for images, labels in DataLoader(data, 128, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return model.eval()


def main(path: Path | None) -> None:
    """Fit, score, and let the first process print and save."""
    digits = load_digits(seed=0)
    train = TensorDataset(digits.train.images, digits.train.labels)
    score = SLU(trained(train), "classification").fit(dealt_out(train, 64))
    flagged = {}
    for name, part in (("fresh digits 0 to 7", digits.test), ("8 and 9, never seen", digits.held_out)):
        flags = score.flag(dealt_out(TensorDataset(part.images), 64), false_alarms=FALSE_ALARMS, gather=True)
        flagged[name] = f"{float(flags.double().mean()):6.1%} of {len(flags)}"
    if distributed.is_initialized() and distributed.get_rank():
        return
    processes = distributed.get_world_size() if distributed.is_initialized() else 1
    print(f"{processes} process{'es' if processes > 1 else ''}, {score.state.points} points fitted")
    for name, share in flagged.items():
        print(f"  {name:<22}{share} flagged at {FALSE_ALARMS:.0%}")
    if path is not None:
        score.save(path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
        if distributed.is_initialized():
            distributed.barrier()  # nobody leaves while the first still prints and saves
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
