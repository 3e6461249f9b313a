"""The corruptions of CIFAR-10-C: its own files where they are, else generated with its strengths."""

from __future__ import annotations

from pathlib import Path

from slu_experiments.data.corruptions.generated import Corrupted
from slu_experiments.data.corruptions.stored import FOLDER, StoredCorruption
from slu_experiments.data.corruptions.strengths import KINDS, REPORTED, SEVERITIES, STRENGTHS
from slu_experiments.data.source import Source

__all__ = ["KINDS", "REPORTED", "SEVERITIES", "STRENGTHS", "Corrupted", "StoredCorruption", "corrupted"]


def corrupted(root: Path, clean: Source, kind: str, severity: int) -> Source:
    """The benchmark's file if there is one below the root, else the clean images, corrupted here."""
    if (root / FOLDER / f"{kind}.npy").exists():
        return StoredCorruption(root / FOLDER, kind, severity)
    return Corrupted(clean, kind, severity)
