"""Experiments: data, networks and training to try the scores on, and the demo."""
