"""A model that is sharded over two processes: the error, and the remedy that it names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from oracles import network
from slu import SLU

RANKS, SECONDS = 2, 300


@pytest.mark.slow
def test_an_unsharded_copy_has_the_score_of_the_plain_model(tmp_path):
    script, store = Path(__file__).with_name("sharded_fit.py"), tmp_path / "store"
    running = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(RANKS), str(store)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=SECONDS) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * RANKS, printed
    model, inputs = network("mlp")
    expected = SLU(model.float(), "classification").fit(inputs.float())(inputs.float()).tolist()
    for out, _ in printed:
        said = json.loads(out.splitlines()[-1])
        for kind in ("fully_shard", "FSDP1"):
            assert said[kind]["scores"] == expected
            assert "sharded over processes" in said[kind]["error"] and "get_model_state_dict" in said[kind]["error"]
