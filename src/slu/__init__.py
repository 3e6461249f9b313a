"""How unsure a trained PyTorch network is about an input."""
