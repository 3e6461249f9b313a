"""What several processes fit in tests: a small network in float64, random points, and parts of them."""

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Subset, TensorDataset


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def points(count: int, likelihood: str, seed: int = 1) -> TensorDataset:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    targets = {"classification": x[:, :3].argmax(1), "regression": x[:, :3], "multilabel": (x[:, :3] > 0).double()}
    return TensorDataset(x, targets[likelihood])


def parts(data, rank: int, size: int, way: str):
    """The part of one process, as users cut data."""
    if way == "sampler":
        return DataLoader(data, batch_size=16, sampler=DistributedSampler(data, size, rank, shuffle=False))
    if way == "batch sampler":
        sampler = DistributedSampler(data, size, rank, shuffle=False)
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 16, drop_last=False))
    if way == "accelerate":
        from accelerate.data_loader import prepare_data_loader

        return prepare_data_loader(DataLoader(data, batch_size=16), num_processes=size, process_index=rank)
    if way == "few last":  # the first process has nearly all
        ends = [0, *(len(data) - 3 * each for each in range(size - 1, 0, -1)), len(data)]
    else:  # uneven, one after the other
        ends = [0, *(len(data) * (3 + 2 * each) // (3 + 2 * size) for each in range(1, size)), len(data)]
    return DataLoader(Subset(data, range(ends[rank], ends[rank + 1])), batch_size=11)


def differences(score, one, queries) -> dict:
    """The largest relative difference by reading, and whether what is decided is the same."""
    found = {}
    for name in one.readings:
        here, there = score(queries, reading=name), one(queries, reading=name)
        found[name] = float(((here - there).abs() / there.abs().clamp(min=1e-9)).max())
    if one.calibration is not None:
        for call in ("pvalue", "flag"):
            found[call] = 0.0 if torch.equal(getattr(score, call)(queries), getattr(one, call)(queries)) else 1.0
        found["threshold"] = abs(score.threshold() / one.threshold() - 1)
        found["calibration points"] = abs(score.calibration.points - one.calibration.points)
    found["points"] = abs(score.state.points - one.state.points)
    return found
