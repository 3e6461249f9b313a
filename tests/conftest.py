"""What every test needs."""

import torch

# The suite runs one process a core; threads of their own would only wait for each other.
torch.set_num_threads(1)
