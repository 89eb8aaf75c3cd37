"""One episode, readable in a terminal. Called by `trajmill show`.

Everything an agent or a tool wrote is hostile text: control characters are written as escapes and nothing in it is
read as markup.
"""

import json

from rich.console import Console, Group
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from pipelines.folder import RunFolder
from pipelines.sql import connect
from pipelines.terminal import plain
from schemas.episode import Episode, Trajectory, Turn
from schemas.errors import InputError
from schemas.tables import from_arrow
from schemas.task import Task

_COLOURS = {"system": "magenta", "user": "cyan", "assistant": "green"}
_LISTED = 5


def find_episode(run: RunFolder, prefix: str) -> tuple[Episode, Task | None]:
    """The episode whose id starts with `prefix` (with or without `episode_`), and its task where the table has it.

    Raises InputError when there is none, or several.
    """
    connection = connect(run)
    query = (
        "select episode_id from episodes where starts_with(episode_id, $1) or starts_with(episode_id, $2) order by 1"
    )
    ids = [row[0] for row in connection.execute(query, [prefix, f"episode_{prefix}"]).fetchall()]
    if len(ids) != 1:
        some = ", ".join(ids[:_LISTED]) + (", ..." if len(ids) > _LISTED else "")
        raise InputError(f"show: {len(ids)} episodes begin with {prefix!r}" + (f": {some}" if ids else ""))
    found = connection.sql("select * from episodes where episode_id = $1", params=ids).to_arrow_table()
    episode = from_arrow(Episode, found)[0]
    tasks = connection.sql("select * from tasks where task_id = $1", params=[episode.task_id]).to_arrow_table()
    return episode, next(iter(from_arrow(Task, tasks)), None)


def print_episode(run: RunFolder, prefix: str, console: Console | None = None) -> None:
    """Print task, provenance, outcome and each agent's conversation."""
    console = console or Console()
    episode, task = find_episode(run, prefix)
    console.print(_head(episode))
    if task:
        console.print(
            Panel(Text(plain(task.instruction)), title="instruction", title_align="left", border_style="cyan")
        )
    for trajectory in episode.trajectories:
        console.print(_conversation(trajectory))
    console.print(Rule("outcome", align="left"))
    console.print(_outcome(episode))


def _head(episode: Episode) -> Table:
    origin = episode.provenance
    source = Text("synthetic: blueprint (reference actions replayed; no model chose them)", style="bold yellow")
    if origin.policy != "blueprint":
        source = Text(plain(f"{origin.policy}: {origin.model or 'no model'}"), style="bold")
    facts: dict[str, str | Text] = {
        "episode": episode.episode_id,
        "task": f"{episode.task_id}  {episode.kind}, {episode.split}",
        "provenance": source,
        "played as": f"{origin.scaffold}, {origin.layout}, effort {origin.effort}, repeat {origin.repeat}"
        + (f", branched after round {origin.branch_after}" if origin.branch_after else ""),
        "seed": str(origin.seed),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(Text(name, style="dim"), value if isinstance(value, Text) else Text(plain(value)))
    return table


def _conversation(trajectory: Trajectory) -> Group:
    turns = {turn.message: turn for turn in trajectory.turns}
    parts: list[Rule | Text] = [
        Rule(Text(plain(f"{trajectory.agent} ({trajectory.role})"), style="bold"), align="left")
    ]
    for index, message in enumerate(trajectory.messages):
        label = Text(message.role, style=f"bold {_COLOURS[message.role]}")
        if index in turns:
            label.append_text(_marks(turns[index]))
        parts += [label, Text(plain(message.content) + "\n")]
    return Group(*parts)


def _marks(turn: Turn) -> Text:
    marks = Text(f"  turn {turn.index}", style="dim")
    if turn.slip:
        marks.append("  slip: a deliberate mistake, never trained on", style="bold yellow")
    if turn.shared:
        marks.append("  shared by all repeats", style="dim")
    if turn.failed:
        marks.append("  the action failed", style="yellow")
    if turn.parse_error:
        marks.append(plain(f"  unreadable: {turn.parse_error}"), style="bold red")
    if turn.finish_reason != "stop":
        marks.append(f"  ended by {turn.finish_reason}", style="yellow")
    return marks


def _outcome(episode: Episode) -> Text:
    words = {True: ("PASSED", "bold green"), False: ("FAILED", "bold red"), None: ("UNDECIDED", "bold yellow")}
    text = Text.assemble(words[episode.passed], f"  stopped by {episode.stop_reason}, {episode.turns} turns")
    if episode.output_tokens is not None:
        text.append(f", {episode.prompt_tokens} prompt and {episode.output_tokens} output tokens")
    if episode.attempts > 1:
        text.append(f", begun {episode.attempts} times: a sandbox was lost")
    if episode.repercussion:
        text.append(f"\nrepercussion: {episode.repercussion}", style="bold red")
    if episode.error:
        text.append(plain(f"\n{episode.error}"), style="red")
    for name, good in json.loads(episode.points_json or "{}").items():
        text.append(f"\n  {'✓' if good else '✗'} {plain(name)}", style="green" if good else "red")
    return text
