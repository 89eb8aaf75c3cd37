"""A run in Jupyter: SQL over its tables as polars frames, and episodes that show themselves.

    from pipelines.notebook import Run
    run = Run("runs/demo")
    run.sql("select policy, count(*), avg(passed::int) from episodes group by all")
    run.episode("episode_1f")

What agents and tools wrote is hostile text: the page escapes all of it and runs no script.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import jinja2
import polars as pl

from pipelines.folder import open_run
from pipelines.show import find_episode
from pipelines.sql import connect
from schemas.episode import Episode


@dataclass(frozen=True)
class EpisodeView:
    """An episode that Jupyter shows as a page: roles by colour, slips marked, verification points on top."""

    episode: Episode

    def _repr_html_(self) -> str:
        pages = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
        )
        e = self.episode
        turns = {(turn.message, t.agent): turn for t in e.trajectories for turn in t.turns}
        replies = {(i, t.agent): turns.get((i, t.agent)) for t in e.trajectories for i in range(len(t.messages))}
        points = sorted(json.loads(e.points_json or "{}").items())
        return pages.get_template("episode.html.j2").render(e=e, replies=replies, points=points)


class Run:
    """A run folder to look at. Raises ConfigError when it is none."""

    def __init__(self, path: str | Path) -> None:
        self.folder = open_run(Path(path))

    def sql(self, query: str) -> pl.DataFrame:
        """Rows of a DuckDB query over the run's tables."""
        with connect(self.folder) as connection:
            frame: pl.DataFrame = connection.sql(query).pl()
            return frame

    def episode(self, start: str) -> EpisodeView:
        """The episode whose id starts so. Raises InputError when none or several do."""
        return EpisodeView(find_episode(self.folder, start)[0])
