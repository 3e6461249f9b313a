"""What is checked of a model and a batch before a fit: `doctor`, its diagnosis, and timings that `plan` uses as well.

doctor     the checks in order
diagnosis  their result, as text and as plain data
subject    what a model, a batch and a return value are, in words
ways       by which way each parameter is differentiated, compared with plain autograd; recorded layers
remedies   from an exception to what to change
timing     seconds of a forward pass, of a query and of a fit, per batch
"""

from slu.diagnosis.diagnosis import Check, Diagnosis
from slu.diagnosis.doctor import doctor

__all__ = ["Check", "Diagnosis", "doctor"]
