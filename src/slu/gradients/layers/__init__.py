"""Per-sample gradients layer by layer, read off the graph that autograd records.

graph       the record of a forward pass, and who uses what
uses        the table of steps that have formulas, and the ways of a parameter to them
layout      which rows of a step belong to which sample
moves       whether data may move those rows from batch to batch
formula     what a formula is; matrix, convolution, embedding, norms, elementwise have them
plan        which formulas a batch's parameters have
forming     gradients from formulas
checking    that they add up to what autograd says of the batch
engine      the whole of it for a batch
"""

from slu.gradients.layers.engine import Layers, Opened, Pulled, shape_of_results

__all__ = ["Layers", "Opened", "Pulled", "shape_of_results"]
