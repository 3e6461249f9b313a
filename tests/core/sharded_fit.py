"""Run by tests as every process of a group: a sharded model is refused, and an unsharded copy of it is fitted."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracles import network
from slu import SLU
from slu.errors import ModelError


def refused(model: nn.Module) -> str:
    try:
        SLU(model, "classification")
    except ModelError as reason:
        return str(reason)
    return ""


def main(rank: int, ranks: int, store: str) -> None:
    torch.set_num_threads(1)
    group = distributed.FileStore(store, ranks)
    distributed.init_process_group("gloo", store=group, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    said = {}
    for kind in ("fully_shard", "FSDP1"):
        model, inputs = network("mlp")
        model = model.float()
        sharded = fully_shard(model) if kind == "fully_shard" else FullyShardedDataParallel(model, device_id=cpu)
        error = refused(sharded)
        weights = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
        plain = network("mlp")[0].float()
        for value in plain.parameters():  # so that the weights can only be those that were gathered
            nn.init.zeros_(value)
        plain.load_state_dict(weights)
        score = SLU(plain, "classification").fit(inputs.float(), group=False)  # every process has all data
        said[kind] = {"error": error, "scores": score(inputs.float()).tolist()}
    distributed.barrier()
    distributed.destroy_process_group()
    print(json.dumps(said))


cpu = torch.device("cpu")

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
