"""Run by tests in a fresh process: loads saved scores and prints what they say, as JSON.

Files are named METHOD-NETWORK-DTYPE-whatever.slu; the network is the oracles' of that name.
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
import slu
from oracles import network


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    said = {}
    for path in sorted(folder.glob("*.slu")):
        method, kind, dtype = path.stem.split("-")[:3]
        model, inputs = network(kind)
        model, inputs = model.to(getattr(torch, dtype)), inputs.to(getattr(torch, dtype))
        score = getattr(slu, method).load(path, model)
        said[path.stem] = {name: score(inputs, reading=name).double().tolist() for name in score.readings}
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
