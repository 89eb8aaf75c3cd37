"""Thin Beam transforms, one file per stage, over the pure functions of `pipelines`."""

import logging

# On import Beam warns about Google libraries that nobody here uses.
logging.getLogger().addFilter(lambda record: "apitools" not in record.getMessage())
# Hundreds of requests would each say, without a reason, that they are tried again; the error at the end has the reason.
logging.getLogger("stamina").setLevel(logging.ERROR)
