"""Finds passwords, keys and tokens in text, each finder yielding spans. Used by `pipelines.redact` only.

Of detect-secrets-plus the plugins' patterns are used and not its scan functions: those read global settings, look at
one line at a time and may call the network to verify a find.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import cast

from detect_secrets.filters import heuristic
from detect_secrets.plugins.artifactory import ArtifactoryDetector
from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.plugins.discord import DiscordBotTokenDetector
from detect_secrets.plugins.github_token import GitHubTokenDetector
from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
from detect_secrets.plugins.jwt import JwtTokenDetector
from detect_secrets.plugins.mailchimp import MailchimpDetector
from detect_secrets.plugins.pypi_token import PypiTokenDetector
from detect_secrets.plugins.sendgrid import SendGridDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.stripe import StripeDetector
from detect_secrets.plugins.twilio import TwilioKeyDetector

Span = tuple[int, int]

PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
URL_LOGIN = re.compile(r"(?<=://)[^\s/:@?#\"'<>]*:[^\s/@\"'<>]+(?=@)")
JWT = re.compile(
    r"(?:(?<![A-Za-z0-9_\-])|(?<=\\[nrt]))eyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{4,}(?:\.[A-Za-z0-9_\-]*)?"
)
BEARER = re.compile(r"\b(?:Bearer|Basic|Token) +([A-Za-z0-9._~+/\-]{16,}=*)")
OWN_KEYS = re.compile(
    r"(?:\bsk-(?:ant|proj|or|live|svcacct)-[A-Za-z0-9_\-]{16,}|\bAIza[A-Za-z0-9_\-]{35}|\bhf_[A-Za-z0-9]{30,}"
    r"|\bgithub_pat_[A-Za-z0-9_]{22,}|\bya29\.[A-Za-z0-9_\-]{20,}|\bglsa_[A-Za-z0-9_]{32,}|\b\d{8,10}:AA[A-Za-z0-9_\-]{33}"
    r"|\bsk-[A-Za-z0-9_\-]{0,120}T3BlbkFJ[A-Za-z0-9]{20}|(?<=:_authToken=)[A-Za-z0-9_\-]{16,128})"
)
ASSIGNED = re.compile(
    r"(?P<name>passw(?:or)?d|passwd|pwd|passphrase|passcode|secret|(?:api|access|auth|account|service|client|private|encryption)"
    r"[_\-]?key|token|credential)(?P<more>[_\-]?(?:key|id|value|hash|secret)?\d{0,2})"
    r"(?P<how>\\*[\"'`]?\]?\s{0,3}(?::=|=>|={1,3}|:)\s{0,3}|\s+(?:is|was)\s+)@?(?P<open>\\*[\"'`])?"
    r"(?P<value>(?(open)[^\n\"'`\\]{4,200}|[^\s\"'`,;<>()\\]{4,200}))",
    re.IGNORECASE,
)
ASSIGNED_WORDS = ("passw", "pwd", "passphrase", "passcode", "secret", "key", "token", "credential")
QUOTED_RANDOM = re.compile(r"[\"']([A-Za-z0-9+/_\-]{32,120}={0,2})(?=\\?[\"'])")

PLAIN_FIELD = re.compile(r"(?:id|ids|model|name|path|dir|file|url|image)\\*[\"']?\s*[:=]\s*\\*$", re.IGNORECASE)

# Left out: plugins of the IBM family and Telegram (OWN_KEYS and ASSIGNED cover their forms at a tenth of the time),
# OpenAI and npm (quadratic time on hostile text; bounded forms in OWN_KEYS), IPPublic (private addresses count here
# too), and the entropy plugins (they flag commit hashes; see QUOTED_RANDOM).
# A slow pattern runs only on text that holds one of its hints.
PLUGINS: dict[type[RegexBasedDetector], tuple[str, ...]] = {
    ArtifactoryDetector: ("AKC", "AP"),
    AWSKeyDetector: ("AKIA", "ASIA", "ABIA", "ACCA", "A3T", "aws", "AWS", "Aws"),
    AzureStorageKeyDetector: ("AccountKey=",),
    DiscordBotTokenDetector: (),
    GitHubTokenDetector: ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    GitLabTokenDetector: (
        "glpat",
        "gldt",
        "glft",
        "gls",
        "glrt",
        "glcbt",
        "glimt",
        "glptt",
        "glag",
        "gloas",
        "GR1348941",
    ),
    MailchimpDetector: ("-us",),
    PypiTokenDetector: ("pypi-Ag",),
    SendGridDetector: ("SG.",),
    SlackDetector: ("xox", "hooks.slack.com"),
    SquareOAuthDetector: ("sq0csp-",),
    StripeDetector: ("k_live_",),
    TwilioKeyDetector: (),
}


def _patterns(plugin: type[RegexBasedDetector]) -> tuple[re.Pattern[str], ...]:
    return tuple(cast("Iterable[re.Pattern[str]]", plugin.denylist))  # declared a property, set as a class attribute


ALWAYS = tuple(pattern for plugin, hints in PLUGINS.items() if not hints for pattern in _patterns(plugin))
ARTIFACTORY = _patterns(ArtifactoryDetector)
KEY_HINTS: dict[str, tuple[re.Pattern[str], ...]] = {
    **dict.fromkeys(("sk-", "AIza", "hf_", "github_pat_", "ya29.", "glsa_", ":AA", ":_authToken="), (OWN_KEYS,)),
    **{hint: _patterns(plugin) for plugin, hints in PLUGINS.items() for hint in hints},
}


def find_private_keys(text: str) -> Iterator[Span]:
    """Whole PEM and PGP private-key blocks; one that is cut off runs to the end of the text."""
    if "PRIVATE KEY" in text:
        yield from (m.span() for m in PRIVATE_KEY.finditer(text))


def find_logins(text: str) -> Iterator[Span]:
    """`user:password` in front of a host in a URL."""
    if "://" in text and "@" in text:
        yield from (m.span() for m in URL_LOGIN.finditer(text))


def find_keys(text: str) -> Iterator[Span]:
    """Keys and tokens with a form of their own: cloud and service keys, JSON web tokens, bearer headers."""
    if "eyJ" in text:
        for m in JWT.finditer(text):
            if JwtTokenDetector.is_formally_valid(".".join(m.group().split(".")[:2])):
                yield m.span()
    if any(word in text for word in ("Bearer ", "Basic ", "Token ")):
        yield from (m.span(1) for m in BEARER.finditer(text) if re.search(r"\d", m[1]))
    hints = [hint for hint in KEY_HINTS if hint in text]
    for pattern in ALWAYS + tuple({id(p): p for hint in hints for p in KEY_HINTS[hint]}.values()):
        yield from filter(None, map(_key_span, pattern.finditer(text)))


def find_assigned(text: str) -> Iterator[Span]:
    """Values given to something called password, secret, key or token; and long random strings in quotes."""
    lowered = text.lower()
    if any(word in lowered for word in ASSIGNED_WORDS):
        for m in ASSIGNED.finditer(text):
            value = m["value"] if m["open"] else m["value"].rstrip(".:")
            if len(value.strip()) >= 4 and _is_secret_value(m, value):
                yield m.start("value"), m.start("value") + len(value)
    for m in QUOTED_RANDOM.finditer(text):
        if _is_random(m[1]) and not PLAIN_FIELD.search(text, max(0, m.start() - 24), m.start()):
            yield m.span(1)


def _key_span(m: re.Match[str]) -> Span | None:
    """Some plugins capture the secret, others only a prefix: a group of twenty characters is the secret."""
    spans = [m.span(i) for i in range(1, len(m.groups()) + 1)]
    start, end = max(spans, key=lambda s: s[1] - s[0], default=m.span())
    start, end = (start, end) if end - start >= 20 else m.span()
    # Only Artifactory's form has no mark of its own but two letters, which capitals in running text also have.
    if m.re in ARTIFACTORY and not re.search(r"\d", m.string[start:end]):
        return None
    return start, end


def _is_secret_value(m: re.Match[str], value: str) -> bool:
    name, quoted = m["name"].lower(), m["open"] is not None
    if heuristic.is_templated_secret(value) or heuristic.is_prefixed_with_dollar_sign(value) or value[0] in "[%{&*":
        return False
    if heuristic.is_sequential_string(value) or heuristic.is_not_alphanumeric_string(value):
        return name.startswith(("passw", "pwd")) and value.isdigit() and len(value) >= 6
    if re.match(r"[\w.\-]+\[", value) or m.string.startswith("(", m.end("value")):
        return False  # a call or a look-up, not a value
    if re.search(r"\s", value) and not (
        name.startswith("pass") and len(value.split()) <= 4 and value[-1] not in ".:!?"
    ):
        return False  # a sentence
    mixed = bool(re.search(r"\d", value)) and bool(re.search(r"[A-Za-z]", value))
    if m["how"].strip().lower() in ("is", "was"):
        return mixed
    if name.startswith(("passw", "pwd", "passc")):
        return mixed or bool(re.search(r"[^\w./?|]", value)) or (quoted and not re.search(r"[./]", value))
    return mixed and len(value) >= 8


@lru_cache(4096)
def _is_random(value: str) -> bool:
    """Letters of both cases and digits, few repeats, no path and no identifier made of words."""
    if not (re.search(r"[a-z]", value) and re.search(r"[A-Z]", value) and len(re.findall(r"\d", value)) >= 3):
        return False
    words = re.findall(r"[a-z]{5,}", value)
    return len(set(value)) >= 18 and sum(map(len, words)) * 3 < len(value) and value.count("/") < 4
