"""What several processes score, and one alone; run by `tests/core/test_gathering.py`."""

from __future__ import annotations

import sys
import time
import warnings

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import positions
from calibrated import problem, slu
from running import group, tell
from slu import SLU, Probes
from slu.errors import SluError

POINTS = 23
"""Of 2 and 3 processes none has as many as another."""
BATCH = 4


def scored(points=POINTS):
    """A fitted score, and points to score; the same in every process, fitted by each alone."""
    model, inputs = problem(points=120)
    queries = 1.5 * problem(points=points, seed=7)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return slu(model).fit(inputs, group=False), queries


def tagged():
    """A fitted score of words, and batches of texts of unequal lengths."""
    model = positions.seeded(positions.Tagger)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        score = SLU(model, "classification", rank=4, sketch="identity").fit(positions.texts(), group=False)
    return score, [positions.texts(points=3, length=length, seed=length)[0] for length in (4, 7, 5, 6)]


QUERIES = {
    "score": lambda score, data, **how: score(data, **how),
    "per output": lambda score, data, **how: score(data, per_output=True, **how),
    "error": lambda score, data, **how: score(data, reading="variance", outputs=Probes(3), return_error=True, **how),
    "pvalue": lambda score, data, **how: score.pvalue(data, **how),
    "pvalue of other rows": lambda score, data, **how: score.pvalue(data, reading="fisher", outputs=2, **how),
    "flag": lambda score, data, **how: score.flag(data, false_alarms=0.3, **how),
    "all": lambda score, data, **how: score.read_all(data, **how),
    "all with errors": lambda score, data, **how: score.read_all(data, outputs=Probes(2), return_error=True, **how),
}


def loader(queries, rank, size, *, shuffle=False, drop_last=False, batch=BATCH):
    data = TensorDataset(queries)
    sampler = DistributedSampler(data, size, rank, shuffle=shuffle, seed=3)
    return DataLoader(data, batch, sampler=sampler, drop_last=drop_last)


def prepared(queries, rank, size, **settings):
    from accelerate.data_loader import prepare_data_loader

    plain = DataLoader(TensorDataset(queries), BATCH * (size if settings.get("split_batches") else 1))
    return prepare_data_loader(plain, num_processes=size, process_index=rank, **settings)


def gathered(rank, size):
    """By name, what a call gave; tensors, pairs and dicts of them."""
    score, queries = scored()
    results = {name: ask(score, loader(queries, rank, size), gather=True) for name, ask in QUERIES.items()}
    results["own"] = score(loader(queries, rank, size))
    results["shuffled"] = score(loader(queries, rank, size, shuffle=True), gather=True)
    results["dropped"] = score(loader(queries, rank, size, drop_last=True), gather=True)
    results["few"] = score(loader(queries[:1], rank, size), gather=True)
    for name, settings in {
        "even": {}, "uneven": {"even_batches": False}, "split": {"split_batches": True},
    }.items():  # fmt: skip
        results[f"accelerate {name}"] = score(prepared(queries, rank, size, **settings), gather=True)
    parts = list(queries.split(9))
    results["by rank"] = score([[each] for each in parts[rank].split(4)], gather=True)
    results["one batch"] = score(parts[rank], gather=True)
    results["one has none"] = score([[each] for each in parts[rank].split(4)] if rank else [], gather=True)
    results["a generator"] = score(([each] for each in parts[rank].split(4)), gather=True)
    # What makes batches drops a point: the places of the others are not known.
    own = loader(queries, rank, size)
    own.collate_fn = lambda rows: (torch.stack([row[0] for row in rows[:-1]]),)
    results["fewer than dealt"] = score(own, gather=True)
    alone = torch.distributed.new_group([0])
    if rank == 0:
        results["only here"] = score(queries)  # nothing is sent without gather
        results["a group of one"] = score(loader(queries, rank, size), gather=True, group=alone)
    results["group=False"] = score(loader(queries, rank, size), gather=True, group=False)
    return results


def of_a_group(rank, size):
    """Of the first and the last process, between which the points are dealt out; the others are refused."""
    score, queries = scored()
    some = torch.distributed.new_group([0, size - 1])
    try:
        return score(loader(queries, min(rank, 1), 2), gather=True, group=some)
    except SluError as reason:
        return str(reason)


def of_positions(rank, size):
    """Scores of words, of which one process has longer texts than another."""
    score, texts = tagged()
    return {
        "positions": score(texts[rank::size], gather=True),
        "reduced": score(texts[rank::size], reduce="max", gather=True),
        "pvalue": score.pvalue(texts[rank::size], gather=True),
        "flag": score.flag(texts[rank::size], false_alarms=0.3, gather=True),
        "read_all": score.read_all(texts[rank::size], gather=True),
    }


def failing(rank, size):
    """By name, how a call ended in this process: the class of the error and its words, or that it gave scores."""
    score, queries = scored()
    own = queries[rank::size]

    def broken():
        yield (own[:2],)
        if rank == 1:
            raise OSError("the disk is gone")
        yield (own[2:4],)

    def ended(call):
        try:
            call()
        except SluError as reason:
            return type(reason).__name__, str(reason)
        return "none", ""

    def long():
        """All of it would take a minute."""
        for _ in range(600):
            time.sleep(0.1)
            yield (own[:2],)

    def timed(call):
        begun = time.monotonic()
        return *ended(call), time.monotonic() - begun

    return {
        "loader": ended(lambda: score(broken(), gather=True)),
        "early": timed(lambda: score(broken() if rank == 1 else long(), gather=True)),
        "empty": ended(lambda: score([], gather=True)),
        "shape": ended(lambda: score(own if rank else own[:, :3], gather=True)),
        "setting": ended(lambda: score.flag(own, false_alarms=0.1 if rank else 7.0, gather=True)),
        "other call": ended(lambda: score(own, reading="fisher" if rank else "variance", gather=True)),
        "same points": ended(lambda: score(loader(queries, 0, size), gather=True)),
        "after": ended(lambda: score(own, gather=True)),
    }


def not_finite(rank, size):
    """The warnings of each process, and the scores of all."""
    score, queries = scored(8)
    queries[3] = torch.nan  # in the data of process 1, of 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores = score(loader(queries, rank, size), gather=True)
    return {"scores": scores, "warnings": [str(each.message) for each in caught]}


if __name__ == "__main__":
    with group() as own_rank:
        size = torch.distributed.get_world_size()
        tell({name: globals()[name](own_rank, size) for name in sys.argv[1:]})
