"""The base of every record, and the scalar types whose Arrow width is not the default one."""

import struct
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Record(BaseModel):
    """Immutable, closed (an unknown field is an error), documented by the docstring under each field.

    Only types with one Arrow form are allowed: str, int, float, bool, datetime, Literal of str, lists and nested
    records. An open-ended map is a JSON string in a field named `*_json`. Absent is None, never zero.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="constants")


def _to_float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


Count = Annotated[int, Field(ge=0, lt=2**63)]
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31), "int32"]
Float32 = Annotated[float, Field(ge=-3.4e38, le=3.4e38), AfterValidator(_to_float32), "float32"]
Effort = Annotated[int, Field(ge=1, le=100)]
