"""Putting scores side by side: the metrics they are judged by."""

from slu.comparing.metrics import Detection, detect

__all__ = ["Detection", "detect"]
