"""Which points a score is calibrated on, and what becomes of them as the score is fitted further, merged or stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from slu.core.calibration import Calibration
from slu.data import HoldOut, Reservoir, collected, known_points
from slu.data.batches import Inputs
from slu.errors import DataError, SettingError
from slu.gradients import Network

if TYPE_CHECKING:
    from slu.core.score import SluScore

MOST_POINTS = 1000
"""That are held out or taken from a calibration set: a rate of 5 % is met to 0.7 %."""

SHARE = 0.1
"""Of the data that is held out, where this is fewer."""

LEAST_POINTS = 200
"""Data of fewer are fitted whole: a tenth of them would be fewer than the 19 that a rate of 5 % takes."""

HELD_OUT, GIVEN = "held out", "given"
_STOPPED = "its fit was interrupted while it calibrated"
_SCORES_ONLY = "a file has the scores of calibration points, not the points"

ReadAll: TypeAlias = Callable[..., dict[str, Tensor]]
"""`SluScore.read_all`."""


@dataclass(frozen=True, eq=False)
class Reference:
    """What a score is compared with.

    Attributes:
        calibration: The calibration points' scores; None where there are none.
        why: There are none.
        held_out: Points whose number (`slu.data.holdout`) lies below this have not been in the fit; 0
            where all have.
        pool: The calibration points themselves, for as long as this process knows them: a file has their scores only.
    """

    calibration: Calibration | None
    why: str = ""
    held_out: float = 0.0
    pool: Reservoir | None = None

    @classmethod
    def none(cls, why: str, held_out: float = 0.0) -> Reference:
        """No calibration, and the reason."""
        return cls(None, why, held_out)

    @classmethod
    def while_calibrating(cls, held_out: float) -> Reference:
        """What there is until the calibration points are scored, and stays where that is interrupted."""
        return cls(None, _STOPPED, held_out)

    @property
    def stopped(self) -> bool:
        """Whether the fit is done but for its calibration."""
        return self.calibration is None and self.why == _STOPPED

    @classmethod
    def of(cls, read: ReadAll, pool: Reservoir, source: str, held_out: float, progress: bool | None) -> Reference:
        """The points of a pool, scored.

        Cost: t gradients a point.
        """
        scores = read(pool.batches(), progress=progress)
        return cls(Calibration.of(scores, source), held_out=held_out, pool=pool)

    def needed(self, what: str) -> Calibration:
        """The calibration, where somebody asks for what cannot be had without.

        Raises:
            SettingError: There is none.
        """
        if self.calibration is None:
            raise SettingError(
                f"{what} needs calibration points, and this score has none: {self.why}. "
                "Call score.calibrate(loader) with points that it was not fitted on, or fit with calibration=loader"
            )
        return self.calibration

    def stored(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain data for a file; the points themselves are never written."""
        plain = {"why": self.why, "held_out": self.held_out}
        if self.calibration is None:
            return {}, plain
        tensors, more = self.calibration.stored()
        return tensors, plain | more

    @classmethod
    def restored(cls, plain: Mapping[str, Any] | None, tensors: Mapping[str, Tensor]) -> Reference:
        """What `stored` gave; files of versions without calibration have nothing."""
        if plain is None:
            return cls.none("its file was written by a version of slu that did not calibrate")
        held_out = float(plain["held_out"])
        if "readings" not in plain:
            return cls.none(str(plain["why"]), held_out)
        return cls(Calibration.restored(tensors.get("calibration"), plain), held_out=held_out)


@dataclass(frozen=True, eq=False)
class Split:
    """What is fitted and what is kept for calibration.

    Attributes:
        data: To fit on.
        network, seed: Whose.
        source: HELD_OUT, GIVEN or None.
        given: A loader, or a pool of an earlier fit.
        before: What an earlier fit held out.
        why: There will be no calibration.
    """

    data: Any
    network: Network
    seed: int
    source: str | None
    given: Any = None
    before: Reservoir | None = None
    why: str = ""

    @property
    def held_out(self) -> float:
        """Once the data were read: points whose number lies below this have not been fitted."""
        pool = self.data.reservoir if isinstance(self.data, HoldOut) else None
        return 0.0 if pool is None else pool.threshold

    def prepared(self) -> Split:
        """The same with points of the user's own read: what is wrong with them must show before a long fit.

        Raises:
            DataError: Empty, not finite, or nothing that the network can be called with.
        """
        if self.source != GIVEN or isinstance(self.given, Reservoir):
            return self
        return replace(self, given=_all_of(self.given, self.network, self.seed))

    def reference(self, read: ReadAll, progress: bool | None) -> Reference:
        """Once the fit is done."""
        if self.source is None:
            return Reference.none(self.why)
        if self.source == GIVEN:
            return Reference.of(read, self.prepared().given, GIVEN, 0.0, progress)
        if not self.held_out:
            return Reference.none(f"of fewer than {LEAST_POINTS} points, or of points all alike, none is held out")
        pool = self.data.reservoir if self.before is None else self.before.joined(self.data.reservoir)
        if not len(pool):
            return Reference.none("none of its points was held out by its content", pool.threshold)
        return Reference.of(read, pool, HELD_OUT, pool.threshold, progress)


def split(network: Network, loader: Any, calibration: Any, seed: int, before: Reference | None = None) -> Split:
    """What of the data is fitted, and what a score is calibrated on.

    Args:
        network, seed: Whose.
        loader: The data.
        calibration: None to hold points out, False to fit on all, or points of their own (a loader).
        before: Of a fit that goes on, what it was compared with so far: None then goes on as it began.
    """
    if calibration is False:
        return Split(loader, network, seed, None, why="it was fitted with calibration=False")
    if calibration is not None:
        return Split(loader, network, seed, GIVEN, calibration)
    if before is not None:
        return _split_as_before(network, loader, seed, before)
    points = known_points(loader)
    if points is not None and points < LEAST_POINTS:
        return Split(loader, network, seed, HELD_OUT)
    return Split(_withheld(loader, SHARE, LEAST_POINTS, network, seed), network, seed, HELD_OUT)


def _split_as_before(network: Network, loader: Any, seed: int, before: Reference) -> Split:
    given = before.calibration is not None and before.calibration.source == GIVEN
    if given and before.pool is not None:
        return Split(loader, network, seed, GIVEN, before.pool)
    if before.held_out:
        # Not a larger share than before: what was fitted then must not be held out now.
        data = _withheld(loader, before.held_out, 0, network, seed)
        return Split(data, network, seed, HELD_OUT, before=before.pool)
    return Split(loader, network, seed, None, why=before.why or f"it was fitted further after loading: {_SCORES_ONLY}")


def merged(references: Sequence[Reference], read: ReadAll, progress: bool | None = False) -> Reference:
    """The pooled points of several fits, scored anew: each one's scores belong to its own subspace."""
    held_out = min(reference.held_out for reference in references)
    pool, sources = None, set()
    for place, reference in enumerate(references):
        if reference.pool is None or reference.calibration is None:
            why = reference.why or f"it was loaded: {_SCORES_ONLY}"
            return Reference.none(f"score {place} of those it was merged from has no points to score: {why}", held_out)
        pool = reference.pool if pool is None else pool.joined(reference.pool)
        sources.add(reference.calibration.source)
    if pool is None or len(sources) > 1:
        return Reference.none("it was merged from scores calibrated on held-out and on given points", held_out)
    if not len(pool):
        return Reference.none("none of the points that its shards held out was held out by all", held_out)
    (source,) = sources
    return Reference.of(read, pool, source, min(held_out, pool.threshold), progress)


def resumed(score: SluScore, parts: Split, loader: Any, progress: bool | None) -> Reference:
    """What a fit that was stopped while it calibrated would have come to; one pass finds its points again."""
    if parts.source == HELD_OUT and score.reference.held_out:
        return recalibrated(score, loader, True, progress)
    return parts.prepared().reference(score.read_all, progress)


def recalibrated(score: SluScore, loader: Any, held_out: bool, progress: bool | None) -> Reference:
    """For `SluScore.calibrate`."""
    network, seed, threshold = score.method.network, score.method.seed, score.reference.held_out
    if not held_out:
        pool = _all_of(loader, network, seed)
        return Reference.of(score.read_all, pool, GIVEN, threshold, progress)
    if not threshold:
        raise SettingError("the fit held no points out, so there are none to calibrate on; give points it has not seen")
    pool = _collected(loader, Reservoir(threshold, MOST_POINTS), network, seed)
    if not len(pool):
        raise DataError("none of these points was held out of the fit; give the data that it was fitted on")
    return Reference.of(score.read_all, pool, HELD_OUT, threshold, progress)


def _withheld(loader: Any, share: float, least: int, network: Network, seed: int) -> HoldOut:
    return HoldOut(loader, share, MOST_POINTS, least, seed, _count(network))


def _all_of(loader: Any, network: Network, seed: int) -> Reservoir:
    pool = _collected(loader, Reservoir(float("inf"), MOST_POINTS), network, seed)
    if not len(pool):
        raise DataError("the calibration points cannot be told apart: their inputs hold no tensor with a row a point")
    return pool


def _collected(loader: Any, pool: Reservoir, network: Network, seed: int) -> Reservoir:
    with network.evaluating():
        return collected(loader, pool, seed, _count(network), network.selection.device)


def _count(network: Network) -> Callable[[Inputs], int]:
    def count(inputs: Inputs) -> int:
        with torch.no_grad():
            return len(network.outputs(inputs))

    return count
