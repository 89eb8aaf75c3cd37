"""linear: sum(w_i * x_i), the (weighted) average of "Model soups" (Wortsman et al., 2022, arXiv:2203.05482).

A weighted soup is the same thing. Parameters: weight of each model, 1 by default; normalize divides the weights by
their sum. Passthrough is its case of one model: x * scale.
"""

from pipelines.merge.methods.base import Combine, Job, MethodSpec
from pipelines.merge.methods.vectors import given_weights, shares, sum_with


def factors(job: Job) -> list[float]:
    """Of each model. ValueError when a weight is not finite, or their sum 0 and to be divided by."""
    weights = given_weights(job)
    return shares(weights) if job.options["normalize"] else weights


def prepare(job: Job) -> Combine:
    """As `factors` raises."""
    return sum_with(factors(job))


def prepare_passthrough(job: Job) -> Combine:
    """The only model, times `scale`."""
    return sum_with([job.models[0]["scale"]])


LINEAR = MethodSpec(prepare, "a model", (1, None), {"weight": 1.0}, {"normalize": 1.0})
PASSTHROUGH = MethodSpec(prepare_passthrough, "a model", (1, 1), {"scale": 1.0}, {})
