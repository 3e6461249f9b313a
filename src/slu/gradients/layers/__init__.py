"""Per-example gradients layer by layer, read off the graph that autograd records.

graph         the record of a forward pass: which step takes what, and whether data may reorder rows
formulas      what a formula is; those of linear layers, embeddings and broadcasting
convolution   those of convolutions and normalizing layers
patterns      the table of steps that have formulas, the uses of a parameter, and the plan of a batch
verification  which rows of a step belong to which example, and that gradients add up to autograd's
collector     the whole of it for a batch: forward, backward, gradients in parts
"""

from slu.gradients.layers.collector import BatchSize, Collector, LayerBackward, LayerForward, activations_of
from slu.gradients.layers.graph import kept_bytes

__all__ = ["BatchSize", "Collector", "LayerBackward", "LayerForward", "activations_of", "kept_bytes"]
