"""A fit that an earlier run had finished, or had left to be calibrated."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from slu.artifacts.checkpoint import CheckpointedRun
from slu.core.calibration import GIVEN, HELD_OUT, CalibrationState
from slu.core.score import SluScore
from slu.core.split import Split, recalibrated
from slu.core.witness import to_file
from slu.data import HoldOut
from slu.gradients import Network


def resume(score: SluScore, parts: Split, run: CheckpointedRun, progress: bool | None) -> None:
    """Compare the data with those of a finished fit, and calibrate one that was stopped while it calibrated."""
    settings, network, before = score.settings, score.settings.network, score.state.calibration
    loader = parts.data.loader if isinstance(parts.data, HoldOut) else parts.data
    if before.stopped and parts.source == HELD_OUT and before.held_out:  # one pass collects its points again
        calibration = recalibrated(
            score.read_uncalibrated, settings, loader,
            threshold=before.held_out, held_out=True, progress=progress, processes=parts.processes,
        )  # fmt: skip
        run.check_read()
        keep_calibration(score, calibration, run)
        return
    if run.compares:
        _read_through(network, loader)
    if before.stopped:
        keep_calibration(score, parts.prepared().calibrated(score.read_uncalibrated, progress), run)
    elif run.compares and parts.source == GIVEN:
        _read_through(network, parts.given)
    run.check_read()


def _read_through(network: Network, data: Any) -> None:
    """Read data that are compared with those of an earlier run."""
    with network.evaluating():
        for _ in network.batches(data, once=True):
            pass


def keep_calibration(score: SluScore, calibration: CalibrationState, run: CheckpointedRun) -> None:
    """The last step of a fit, which is written with it."""
    score.state = dataclasses.replace(score.state, calibration=calibration)
    run.finish(partial(to_file, score.settings, score.sketch, score.state, estimated=False), calibrated=True)
