"""A method's parameters for one tensor: gradients over the layers, filters by tensor name, defaults. `plan` calls it.

Read as mergekit 0.1.5 reads them. The first scope that gives a value counts: the model's own, the slice's, the
recipe's, the method's default. A list of filtered values of which none fits gives no value.
"""

from collections.abc import Iterable, Mapping
from math import isnan

from pipelines.merge.methods.base import MethodSpec
from schemas.errors import MergeError
from schemas.merge import Filtered, MergeRecipe, Parameter, Parameters, Slice, Source


def model_parameters(
    recipe: MergeRecipe,
    source: Source,
    name: str,
    layer: int | None,
    layers: int,
    defaults: Mapping[str, float],
    part: Slice | None = None,
) -> dict[str, float]:
    """Parameters of one model for the tensor that it calls `name`; keys are those of `defaults`.

    `layer` counts from 0 to `layers` - 1 within the slice `part`, or in the model when the recipe has no slices. It is
    None outside the layers (embedding, last norm, head), where a gradient has the value of its first anchor. Raises
    MergeError when a parameter without a default is not set.
    """
    scopes = (source.parameters, part.parameters if part else {}, recipe.parameters)
    return _resolve(scopes, name, layer, layers, defaults, f" for {source.model}")


def method_options(
    recipe: MergeRecipe,
    name: str,
    layer: int | None,
    layers: int,
    defaults: Mapping[str, float],
    part: Slice | None = None,
) -> dict[str, float]:
    """Options of the method for the output tensor `name`, else as `model_parameters`."""
    return _resolve((part.parameters if part else {}, recipe.parameters), name, layer, layers, defaults, "")


def unknown(recipe: MergeRecipe, spec: MethodSpec) -> list[str]:
    """A line for each parameter that stands where the method does not look for it."""
    own, shared = set(spec.model_parameters), set(spec.model_parameters) | set(spec.options)
    places = [(f"models.{i}.parameters", source.parameters, own) for i, source in enumerate(recipe.models)]
    for i, part in enumerate(recipe.slices):
        places.append((f"slices.{i}.parameters", part.parameters, shared))
        places += [(f"slices.{i}.sources.{k}.parameters", s.parameters, own) for k, s in enumerate(part.sources)]
    places.append(("parameters", recipe.parameters, shared))
    return [
        f"{place}.{name}: {recipe.method} has no such parameter here; there are {', '.join(sorted(known)) or 'none'}"
        for place, parameters, known in places
        for name in parameters
        if name not in known
    ]


def _resolve(
    scopes: Iterable[Parameters],
    name: str,
    layer: int | None,
    layers: int,
    defaults: Mapping[str, float],
    whose: str,
) -> dict[str, float]:
    scopes = tuple(scopes)
    found = {}
    for key, default in defaults.items():
        values = (_value(scope[key], name, layer, layers) for scope in scopes if key in scope)
        value = next((v for v in values if v is not None), default)
        if isnan(value):
            raise MergeError(f"{name}: the parameter {key} is not set{whose}")
        found[key] = value
    return found


def _value(parameter: Parameter, name: str, layer: int | None, layers: int) -> float | None:
    """A parameter's value for a tensor; None when no filter fits."""
    if not isinstance(parameter, list):
        return float(parameter)
    anchors: list[float] = []
    for item in parameter:
        if not isinstance(item, Filtered):
            anchors.append(item)
        elif item.filter in (None, "*") or str(item.filter) in name:
            anchors = item.value if isinstance(item.value, list) else [item.value]
            break
    return _between(anchors, layer, layers) if anchors else None


def _between(anchors: list[float], layer: int | None, layers: int) -> float:
    """The gradient at a layer; a single layer has the last anchor, as in mergekit."""
    if layer is None:
        return anchors[0]
    place = (layer / (layers - 1) if layers > 1 else 1.0) * (len(anchors) - 1)
    low = int(place)
    high = min(low + 1, len(anchors) - 1)
    return (1 - (place - low)) * anchors[low] + (place - low) * anchors[high]
