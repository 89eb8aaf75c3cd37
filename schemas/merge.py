"""What a merge is asked to do: our recipe, which also reads the YAML of mergekit. Called by `pipelines.merge`."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from schemas.recipe import Settings

Method = Literal[
    "linear", "slerp", "nuslerp", "multislerp", "task_arithmetic", "ties", "dare_linear", "dare_ties", "della",
    "breadcrumbs", "model_stock", "karcher", "sce", "ram", "passthrough",
]  # fmt: skip
Dtype = Literal["float32", "float16", "bfloat16"]


class Filtered(Settings):
    """A value for the tensors whose name contains `filter`; null and `*` are for all others."""

    filter: str | None = None
    """Part of a tensor's name."""
    value: float | Annotated[list[float], Field(min_length=1)]
    """A number, or a gradient over the layers."""


def _parameter(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    items = [value] if isinstance(value, dict) else value
    try:
        # A step between true and false is no gradient.
        if items == [] or (isinstance(items, list) and any(isinstance(item, bool) for item in items)):
            raise ValueError
        return check(items)
    except ValueError as error:  # of all that it could be, in one line
        raise ValueError("neither a number, nor a list of numbers, nor a list of {filter, value}") from error


Parameter = Annotated[bool | float | list[float] | list[Filtered], WrapValidator(_parameter)]
"""A number; a gradient: anchors spread evenly over the layers, linear between them; or values by tensor name, of which
the first that fits counts."""


def _given(value: Any) -> Any:
    return {} if value is None else value


def _listed(value: Any) -> Any:
    return [] if value is None else value


Parameters = Annotated[dict[str, Parameter], BeforeValidator(_given)]
"""By name; null is none."""


def _named(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


class Source(Settings):
    """One model and its own parameters."""

    model: str
    """Folder of a safetensors checkpoint."""
    parameters: Parameters = {}
    """Of this model, e.g. weight and density; they go before those of the recipe."""


class LayerSource(Source):
    """Some layers of a model."""

    layer_range: tuple[int, int]
    """From, up to and without."""

    @model_validator(mode="after")
    def _has_layers(self) -> Self:
        if not 0 <= self.layer_range[0] < self.layer_range[1]:
            raise ValueError(f"layer_range {list(self.layer_range)} holds no layer")
        return self


class Slice(Settings):
    """Layers of the result: those of its sources, merged; of one source, copied."""

    sources: list[LayerSource] = Field(min_length=1)
    """As many layers each."""
    parameters: Parameters = {}
    """Of these layers, after those of the sources and before those of the recipe."""


class MergeRecipe(Settings):
    """Which checkpoints are merged, and how."""

    model_config = ConfigDict(populate_by_name=True)

    method: Method = Field(validation_alias=AliasChoices("method", "merge_method"))
    """Merge method."""
    base_model: str | None = None
    """Folder of the checkpoint that the others were trained from; the methods on task vectors need it.

    linear, karcher and passthrough take it as one of the models, as mergekit does; in slices it then only gives
    configuration and tokenizer."""
    models: Annotated[list[Annotated[Source, BeforeValidator(_named)]], BeforeValidator(_listed)] = []
    """What is merged: folders, or folders with parameters. The base may stand among them or not: it is no task."""
    slices: Annotated[list[Slice], BeforeValidator(_listed)] = []
    """Instead of models: the result's layers from bottom to top."""
    parameters: Parameters = {}
    """Of the method, and defaults of the models' own."""
    out_dtype: Dtype | None = None
    """Output dtype; null keeps the base's (else the first model's) per tensor. Computed in float32 always."""
    vocabulary: Literal["same", "base", "union"] = "same"
    """same: other vocabularies are an error. base: the base's (else the first model's) tokens. union: those of all."""
    missing_token: Literal["mean", "donor"] = "donor"  # noqa: S105
    """The row of a token that a model lacks. donor: the mean of the rows of the models that have it. mean: the mean of
    the rows of the model's own old tokens."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of the methods that draw."""

    @model_validator(mode="after")
    def _has_sources(self) -> Self:
        if bool(self.models) == bool(self.slices):
            raise ValueError("a recipe has either models or slices")
        return self
