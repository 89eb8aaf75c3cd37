"""The command `trajmill`. Heavy imports (Beam, torch, DuckDB) happen inside the commands that need them."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipelines.names import check_names
from schemas.errors import ConfigError, TrajmillError

app = typer.Typer(
    help="Usage logs in, verified agent trajectories and Parquet shards out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]
Out = Annotated[Path, typer.Option("--out", help="Folder to write.", show_default=False)]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Worker threads of the embedded Beam runner.")]
Beam = Annotated[str, typer.Option("--beam", help='Options for Beam, e.g. "--runner=FlinkRunner --flink_master=...".')]


@app.callback()
def _global(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """Usage logs in, verified agent trajectories and Parquet shards out."""


@app.command()
def run(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="Usage logs: a file or a folder.")],
    out: Out,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file; all fields have defaults.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Everything random derives from it.")] = None,
    workers: Workers = None,
    beam: Beam = "",
) -> None:
    """Run every stage on the logs in INPUT; the same command again continues a run that was stopped."""
    from pipelines.config import load_config
    from pipelines.folder import locked
    from pipelines.progress import Progress
    from pipelines.stages import interruptible, logs_for, open_for, run_all

    chosen, options = load_config(config, seed=seed, workers=workers), _options(beam)
    logs_for(source, out)  # before a folder is made
    with interruptible(out), locked(out):
        progress = Progress()
        folder = open_for(source, out, chosen, progress)
        run_all(folder, progress, options)
        from pipelines.summary import print_summary

        print_summary(folder)


def _options(beam: str) -> list[str]:
    try:
        return shlex.split(beam)
    except ValueError as e:
        raise ConfigError(f"--beam {beam!r}: {e}") from e


def _alone(path: Path, stage: str, beam: str, source: Path | None = None) -> None:
    from pipelines.folder import locked, open_run
    from pipelines.progress import Progress
    from pipelines.stages import interruptible, open_for, run_alone

    folder, options = open_run(path), _options(beam)
    with interruptible(path), locked(path):
        progress = Progress()
        if stage == "ingest":
            folder = open_for(source or Path(folder.facts()["input"]), path, folder.config(), progress)
        run_alone(folder, stage, progress, options)


@app.command()
def ingest(
    run_dir: RunDir,
    source: Annotated[
        Path | None, typer.Argument(metavar="[INPUT]", help="Logs; those of the run when absent.")
    ] = None,
    beam: Beam = "",
) -> None:
    """Read the logs again into the private session store."""
    _alone(run_dir, "ingest", beam, source)


@app.command()
def patterns(run_dir: RunDir, beam: Beam = "") -> None:
    """Find and release the usage patterns again."""
    _alone(run_dir, "patterns", beam)


@app.command()
def tasks(run_dir: RunDir, beam: Beam = "") -> None:
    """Build and validate the tasks again."""
    _alone(run_dir, "tasks", beam)


@app.command()
def rollout(run_dir: RunDir) -> None:
    """Run the episodes: continue when they were stopped, start over when they were finished."""
    _alone(run_dir, "rollout", "")


@app.command()
def score(run_dir: RunDir, beam: Beam = "") -> None:
    """Score and filter the episodes again."""
    _alone(run_dir, "score", beam)


@app.command()
def shards(run_dir: RunDir, beam: Beam = "") -> None:
    """Write the shards again."""
    _alone(run_dir, "shards", beam)


@app.command()
def summary(run_dir: RunDir) -> None:
    """Print the table that `run` ends with."""
    from pipelines.folder import open_run
    from pipelines.summary import print_summary

    print_summary(open_run(run_dir))


@app.command()
def sql(
    run_dir: RunDir,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="One SELECT over sessions, patterns, tasks, episodes, ...")
    ],
    output: Annotated[Literal["table", "csv", "json"], typer.Option("--format", help="How to print it.")] = "table",
) -> None:
    """Query the tables of a run with DuckDB."""
    from pipelines.folder import open_run
    from pipelines.sql import print_query

    print_query(open_run(run_dir, any_version=True), query, output)


@app.command()
def show(
    run_dir: RunDir,
    episode: Annotated[str, typer.Argument(metavar="EPISODE", help="Id of an episode, or a unique beginning of one.")],
) -> None:
    """Print one episode, readable in a terminal."""
    from pipelines.folder import open_run
    from pipelines.show import print_episode

    print_episode(open_run(run_dir), episode)


@app.command()
def train(
    run_dir: RunDir,
    out: Out,
    base: Annotated[str, typer.Option("--base", help="smollm2, a .gguf file or a folder of safetensors.")] = "smollm2",
    scaffold: Annotated[
        list[str] | None, typer.Option("--scaffold", help="Only its samples; may be given again.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many samples.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file; all fields have defaults.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of the samples drawn and their order.")] = None,
) -> None:
    """Train a checkpoint on the shards of RUN; the same command again continues what was stopped."""
    from pipelines.config import load_settings
    from pipelines.folder import open_run
    from pipelines.posttrain.checkpoint import starting_point
    from pipelines.posttrain.examples import examples_of, shard_hashes
    from pipelines.posttrain.sft import train as train_on
    from pipelines.stages import interruptible
    from schemas.posttrain import TrainSettings

    settings, shards = load_settings(TrainSettings, config, seed=seed), open_run(run_dir).shards
    examples = examples_of(shards, scaffold, limit, settings.seed)
    lineage = {"shards": shard_hashes(shards), "scaffolds": scaffold, "limit": limit}
    with interruptible(out):
        train_on(starting_point(base, out), examples, out, settings, lineage)
    print(f"trained on {len(examples)} samples into {out}; lineage.json and losses.jsonl there say how")


@app.command()
def merge(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="Folders of safetensors checkpoints, or one recipe (YAML).")
    ],
    out: Out,
    method: Annotated[str | None, typer.Option("--method", help="How to merge, e.g. linear or ties.")] = None,
    base: Annotated[Path | None, typer.Option("--base", help="The checkpoint that all were trained from.")] = None,
    weights: Annotated[str | None, typer.Option("--weights", help="One number per model, e.g. 0.3,0.7.")] = None,
    parameters: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=NUMBER", help="Of the method, e.g. density=0.5 or t=0.3.")
    ] = None,
    ema: Annotated[
        float | None, typer.Option("--ema", min=0, max=1, help="Decay of an average along a run, oldest model first.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None, typer.Option("--dtype", help="Output type.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the methods that draw.")] = 0,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Output files written at once.")] = 1,
) -> None:
    """Merge checkpoints into one; the same command again continues a merge that was killed."""
    from pipelines.merge.recipe_file import load_recipe, recipe_of
    from pipelines.merge.run import merge as merge_checkpoints

    if len(models) == 1 and models[0].suffix in (".yaml", ".yml"):
        if method or base or weights or parameters or ema is not None or dtype or seed:
            raise ConfigError("a recipe says all; with one there are only --out and --workers")
        recipe = load_recipe(models[0])
    else:
        recipe = recipe_of(
            [str(m) for m in models],
            method=method,
            base=str(base) if base else None,
            weights=weights,
            parameters=parameters or [],
            ema=ema,
            dtype=dtype,
            seed=seed,
        )
    merge_checkpoints(recipe, out, workers)
    print(f"merged {len(recipe.models) or len(recipe.slices)} into {out}; lineage.json there says how")


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="smollm2, a folder of safetensors or a .gguf file.")],
    run_dir: RunDir,
    out: Annotated[Path, typer.Option("--out", help="JSON lines to write, one per attempt.", show_default=False)],
    scaffold: Annotated[
        list[str] | None, typer.Option("--scaffold", help="Through this one; may be given again; all when absent.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many tasks.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file; all fields have defaults.")] = None,
    repeats: Annotated[int | None, typer.Option("--repeats", min=1, help="Attempts at each task, for pass@k.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0, help="0 is greedy.")] = None,
) -> None:
    """Try a checkpoint on the evaluation tasks of RUN, in sandboxes."""
    from agents.scaffolds import SCAFFOLDS
    from pipelines.config import load_settings
    from pipelines.folder import open_run
    from pipelines.posttrain.evaluate import evaluate_run
    from schemas.posttrain import EvaluationSettings

    settings = load_settings(EvaluationSettings, config, repeats=repeats, temperature=temperature)
    run = open_run(run_dir)
    for line in evaluate_run(model, run.path, scaffold or list(SCAFFOLDS), settings, out, limit):
        print(line, flush=True)


@app.command()
def loop(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="Usage logs: a file or a folder.")],
    out: Out,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file; all fields have defaults.")] = None,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", min=0, help="Of training; may be given again, and added later.")
    ] = None,
) -> None:
    """Does the data teach? Train, merge and evaluate from the logs in INPUT; the same command again goes on."""
    from pipelines.config import load_settings
    from pipelines.posttrain.loop import run_loop
    from pipelines.progress import Progress
    from pipelines.stages import interruptible, logs_for
    from schemas.posttrain import LoopSettings

    settings = load_settings(LoopSettings, config, seeds=seed or None)
    logs_for(source, out)  # before a folder is made
    with interruptible(out):
        report = run_loop(source, out, settings, Progress())
    print(f"{report} says what every arm solved; report.svg beside it shows it, report.json holds the numbers")


@app.command()
def node(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 picks a free one.")] = 0,
    max_live: Annotated[int, typer.Option("--max-live", min=1, help="Sandboxes at once.")] = 2500,
    spares: Annotated[int, typer.Option("--spares", min=0, help="Sandboxes kept ready.")] = 0,
    token_env: Annotated[
        str | None, typer.Option("--token-env", help="Variable that holds the token; needed off loopback.")
    ] = None,
    accept_process_memory_limit: Annotated[
        bool, typer.Option("--accept-process-memory-limit", help="Work without a memory cgroup too.")
    ] = False,
) -> None:
    """Offer this host's sandboxes to runs elsewhere, until a signal ends it."""
    from agents.access import token_from
    from agents.sandbox.node.serve import serve
    from agents.sandbox.pool import PoolSettings

    settings = PoolSettings(max_live=max_live, spares=spares)
    serve(host, port, settings, token_from(token_env, host), accept_process_memory_limit=accept_process_memory_limit)


@app.command()
def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="smollm2, a folder of safetensors or a .gguf file.")],
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 picks a free one.")] = 8000,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Replies sampled at once.")] = 64,
    max_queue: Annotated[int, typer.Option("--max-queue", min=0, help="Replies that may wait; more get 429.")] = 256,
    context: Annotated[int, typer.Option("--context", min=256, help="Longest conversation in tokens.")] = 4096,
    kv: Annotated[
        Literal["fp32", "bf16", "int8", "k8v4"], typer.Option("--kv", help="Format of keys and values.")
    ] = "int8",
    kv_megabytes: Annotated[int, typer.Option("--kv-megabytes", min=16, help="Memory for them.")] = 1280,
    precision: Annotated[
        Literal["auto", "fp16", "fp32", "int8", "bf16"], typer.Option("--precision", help="Format of the weights.")
    ] = "auto",
    device: Annotated[Literal["cpu", "cuda"], typer.Option("--device", help="Where to compute.")] = "cpu",
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads that sample; one per core.")] = None,
    token_env: Annotated[
        str | None, typer.Option("--token-env", help="Variable that holds the token; needed off loopback.")
    ] = None,
) -> None:
    """Serve a model over OpenAI's HTTP API until a signal ends it."""
    from agents.access import token_from
    from pipelines.serve import serve as serve_model
    from schemas.recipe import EngineSettings

    settings = EngineSettings(
        model=model,
        max_batch=max_batch,
        context=context,
        kv=kv,
        kv_megabytes=kv_megabytes,
        precision=precision,
        device=device,
        threads=threads,
    )
    serve_model(settings, host, port, max_queue=max_queue, token=token_from(token_env, host))


@app.command()
def doctor() -> None:
    """Say what this host can do and what is missing; exit status 1 when the default run cannot work."""
    from pipelines.doctor import print_report

    raise typer.Exit(0 if print_report() else 1)


def main() -> None:
    """Entry point: an error of ours, or of the file system, is one line on standard error and exit status 2."""
    try:
        check_names()
        app()
    except (TrajmillError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        print(f"trajmill: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
