"""The merge methods by name. The planner (`pipelines.merge.plan`) looks them up here."""

from pipelines.merge.methods.base import MethodSpec
from pipelines.merge.methods.karcher import KARCHER
from pipelines.merge.methods.linear import LINEAR, PASSTHROUGH
from pipelines.merge.methods.model_stock import MODEL_STOCK
from pipelines.merge.methods.multislerp import MULTISLERP
from pipelines.merge.methods.nuslerp import NUSLERP
from pipelines.merge.methods.ram import RAM
from pipelines.merge.methods.sce import SCE
from pipelines.merge.methods.slerp import SLERP
from pipelines.merge.methods.task_vectors import (
    BREADCRUMBS,
    DARE_LINEAR,
    DARE_TIES,
    DELLA,
    TASK_ARITHMETIC,
    TIES,
)
from schemas.merge import Method

METHODS: dict[Method, MethodSpec] = {
    "linear": LINEAR,
    "slerp": SLERP,
    "nuslerp": NUSLERP,
    "multislerp": MULTISLERP,
    "task_arithmetic": TASK_ARITHMETIC,
    "ties": TIES,
    "dare_linear": DARE_LINEAR,
    "dare_ties": DARE_TIES,
    "della": DELLA,
    "breadcrumbs": BREADCRUMBS,
    "model_stock": MODEL_STOCK,
    "karcher": KARCHER,
    "sce": SCE,
    "ram": RAM,
    "passthrough": PASSTHROUGH,
}
