"""Run by test_slu_storage.py in a fresh process: loads saved scores and prints what they say, as JSON."""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracles import network
from slu import SLU


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    found = {}
    for path in sorted(folder.glob("*.slu")):
        kind, dtype = path.stem.split("-")[:2]
        model, inputs = network(kind)
        model, inputs = model.to(getattr(torch, dtype)), inputs.to(getattr(torch, dtype))
        score = SLU.load(path, model)
        found[path.stem] = {
            reading: score(inputs, reading=reading).double().tolist() for reading in ("variance", "fisher-relative")
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
