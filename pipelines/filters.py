"""Small functions that refuse a sample with a reason. `pipelines.samples` asks them in order; the first one counts."""

from collections.abc import Callable

from schemas.episode import Episode
from schemas.recipe import ScoreSettings
from schemas.sample import Sample
from schemas.verdict import Verdict

Filter = Callable[[Sample, Episode, ScoreSettings], Verdict | None]

KEPT = Verdict(keep=True, reason="kept")


def _refuse(condition: bool, reason: str) -> Verdict | None:
    return Verdict(keep=False, reason=reason) if condition else None


def score_of(sample: Sample, name: str) -> float | None:
    """Value of the score with this name; null when it was not measured."""
    return next((score.value for score in sample.scores if score.name == name), None)


def eval_split(_: Sample, episode: Episode, __: ScoreSettings) -> Verdict | None:
    """Tasks with a reserved wording are for evaluation and never reach a shard."""
    return _refuse(episode.split == "eval", "eval_split")


def undecided(sample: Sample, _: Episode, __: ScoreSettings) -> Verdict | None:
    """An infrastructure failure says nothing about the policy."""
    return _refuse(sample.passed is None, "undecided")


def no_reply(sample: Sample, _: Episode, __: ScoreSettings) -> Verdict | None:
    """The agent never took a turn."""
    return _refuse(not sample.turns, "no_reply")


def format_invalid(sample: Sample, _: Episode, settings: ScoreSettings) -> Verdict | None:
    """Too many replies that the scaffold could not read."""
    valid = score_of(sample, "format_valid")
    return _refuse(valid is not None and 1 - valid > settings.max_parse_error_share, "format_invalid")


def nothing_trained(sample: Sample, _: Episode, __: ScoreSettings) -> Verdict | None:
    """The loss mask would be zero everywhere."""
    # An output of no tokens has nothing to train on, though its message exists; null means tokens come later.
    trained = any(sample.trained[turn.message] and turn.output_ids != [] for turn in sample.turns)
    return _refuse(not trained, "nothing_trained")


def too_long(sample: Sample, _: Episode, settings: ScoreSettings) -> Verdict | None:
    """Longer than a trainer takes."""
    tokens = score_of(sample, "tokens")
    return _refuse(tokens is not None and tokens > settings.max_tokens, "too_long")


def not_passed(sample: Sample, _: Episode, settings: ScoreSettings) -> Verdict | None:
    """The verification did not hold."""
    return _refuse(settings.require_pass and sample.passed is not True, "not_passed")


FILTERS: tuple[Filter, ...] = (
    eval_split,
    undecided,
    no_reply,
    format_invalid,
    nothing_trained,
    too_long,
    not_passed,
)


def verdict_of(sample: Sample, episode: Episode, settings: ScoreSettings) -> Verdict:
    """The verdict of the first filter that refuses, else `kept`."""
    return next((v for filter_ in FILTERS if (v := filter_(sample, episode, settings)) is not None), KEPT)
