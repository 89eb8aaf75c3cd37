"""The units of a merge on Beam's workers. Called by `pipelines.merge.run.merge`.

Nothing is shuffled but names: a worker leaves the files and a note of each in the merge's folder.
"""

from collections.abc import Sequence
from pathlib import Path

import apache_beam as beam

from pipelines.merge.plan import Plan
from pipelines.merge.run import do_unit
from pipelines.transforms.beam import run_pipeline


def do_units(planned: Plan, units: Sequence[str], work: Path, workers: int, options: Sequence[str] = ()) -> None:
    """Do the units of work in the folder `work`, which all workers share. Raises the error of a unit."""

    def build(pipeline: beam.Pipeline) -> None:
        pipeline | beam.Create(units) | beam.Reshuffle() | beam.Map(do_unit, planned=planned, work=work)

    if units:
        run_pipeline(build, workers, options)
