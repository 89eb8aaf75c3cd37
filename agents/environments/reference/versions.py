"""Version numbers of the form major.minor.patch."""


def parse(version: str) -> list[int]:
    """The three numbers; missing ones are 0, a leading v is ignored. Anything else is a ValueError."""
    numbers = [int(part) for part in version.removeprefix("v").split(".")]
    if len(numbers) > 3 or min(numbers) < 0:
        raise ValueError(f"not a version: {version}")
    return numbers + [0] * (3 - len(numbers))


def compare(first: str, second: str) -> int:
    """-1, 0 or 1, as `first` is older than, equal to or newer than `second`."""
    left, right = parse(first), parse(second)
    return (left > right) - (left < right)


def bump(version: str, part: str = "patch") -> str:
    """The next version, by its patch number if no part is given; parts after the raised one become 0."""
    major, minor, patch = parse(version)
    if part == "major":
        return f"{major + 1}.0.0"
    if part == "minor":
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}"


def latest(versions: list[str], major: int | None = None) -> str | None:
    """Newest version, only of one major number if that is given; None when there is none."""
    candidates = [version for version in versions if major is None or parse(version)[0] == major]
    return max(candidates, key=parse, default=None)


def compatible(wanted: str, offered: str) -> bool:
    """Whether `offered` has the same major number as `wanted` and is not older."""
    return parse(wanted)[0] == parse(offered)[0] and compare(wanted, offered) <= 0


def outdated(installed: dict[str, str], available: dict[str, str]) -> list[str]:
    """Names of installed packages for which something newer is available, sorted."""
    return sorted(
        name for name, version in installed.items() if name in available and compare(version, available[name]) < 0
    )
