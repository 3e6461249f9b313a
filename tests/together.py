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


def parts(data, rank: int, size: int, way: str, batch: int = 16):
    """The part of one process, as users cut data."""
    if way == "sampler":
        return DataLoader(data, batch_size=batch, sampler=DistributedSampler(data, size, rank, shuffle=False))
    if way == "batch sampler":
        sampler = DistributedSampler(data, size, rank, shuffle=False)
        return DataLoader(data, batch_sampler=BatchSampler(sampler, batch, drop_last=False))
    if way == "accelerate":
        from accelerate.data_loader import prepare_data_loader

        return prepare_data_loader(DataLoader(data, batch_size=batch), num_processes=size, process_index=rank)
    if way == "few last":  # the first process has nearly all
        ends = [0, *(len(data) - 3 * each for each in range(size - 1, 0, -1)), len(data)]
    else:  # uneven, one after the other
        ends = [0, *(len(data) * (3 + 2 * each) // (3 + 2 * size) for each in range(1, size)), len(data)]
    return DataLoader(Subset(data, range(ends[rank], ends[rank + 1])), batch_size=batch - 5)


def answers(score, queries) -> dict:
    """Readings, what is decided, and how many points there were."""
    found = {"points": score.state.points, "readings": {n: score(queries, reading=n) for n in score.readings}}
    if score.calibration is not None:
        found |= {call: getattr(score, call)(queries) for call in ("pvalue", "flag")}
        found |= {"threshold": score.threshold(), "calibration points": score.calibration.points}
    return found


def differences(score, one, queries) -> dict:
    """The largest relative difference by reading, and whether what is decided is the same.

    Args:
        one: A score, or the `answers` of one.
    """
    here, there = answers(score, queries), one if isinstance(one, dict) else answers(one, queries)
    assert here.keys() == there.keys()
    found = {
        name: float(((here["readings"][name] - values).abs() / values.abs().clamp(min=1e-9)).max())
        for name, values in there["readings"].items()
    }
    for call in {"pvalue", "flag"} & there.keys():
        found[call] = 0.0 if torch.equal(here[call], there[call]) else 1.0
    if "threshold" in there:
        found["threshold"] = abs(here["threshold"] / there["threshold"] - 1)
    for count in {"points", "calibration points"} & there.keys():
        found[count] = abs(here[count] - there[count])
    return found
