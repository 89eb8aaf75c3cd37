"""Finds personal data and secrets in text: one function per kind, each yielding spans. Used by `pipelines.redact` only.

Checksums, number plans and key formats come from libraries (python-stdnum, phonenumbers, detect-secrets-plus); what
stands here is where to look and what to leave alone. Of detect-secrets the plugins' patterns are used and not its scan
functions: those read global settings, look at one line at a time and may call the network to verify a find.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import cast

import phonenumbers
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
from detect_secrets.plugins.npm import NpmDetector
from detect_secrets.plugins.openai import OpenAIDetector
from detect_secrets.plugins.pypi_token import PypiTokenDetector
from detect_secrets.plugins.sendgrid import SendGridDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.stripe import StripeDetector
from detect_secrets.plugins.twilio import TwilioKeyDetector
from stdnum import iban, luhn, verhoeff
from stdnum.br import cpf
from stdnum.ca import sin
from stdnum.de import idnr
from stdnum.es import dni, nie
from stdnum.fi import hetu
from stdnum.fr import nir
from stdnum.gb import nhs
from stdnum.it import codicefiscale
from stdnum.nl import bsn
from stdnum.pl import pesel
from stdnum.se import personnummer
from stdnum.us import ssn

Span = tuple[int, int]
Finder = Callable[[str], Iterator[Span]]

# A log often holds JSON inside text, where a line starts with the two characters \n: a letter before the value.
START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt]))"
END = r"(?![A-Za-z0-9_])"

EMAIL = re.compile(START + r"[A-Za-z0-9][A-Za-z0-9._%+\-]{0,63}@(?:[A-Za-z0-9\-]{1,63}\.)+[A-Za-z]{2,24}" + END)
HOME = re.compile(
    r"(?:/home/|/Users/|/export/home/)[^\s/\\\"'`:;,<>|()\[\]{}*$]+"
    r"|[A-Za-z]:(?:\\+|/)Users(?:\\+|/)[^\s/\\\"'`:;,<>|()\[\]{}*%]+"
    r"|(?<![\w./\-])/root(?![\w.\-])"
)
SHARED_HOMES = re.compile(r"(?:Shared|Public|Default|All Users|runner|\.\.+)$")
# These start with a class of characters and not with a look-behind, which makes the search ten times faster:
# `_starts_word` looks at the character before.
IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}(?![A-Za-z0-9_]|\.\d)")
IPV6 = re.compile(r"[0-9A-Fa-f:](?:[0-9A-Fa-f]{0,3}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
IPV6_HINT = re.compile(r"::|:[0-9A-Fa-f]{1,4}:[0-9A-Fa-f]{1,4}:[0-9A-Fa-f]{1,4}:")
VERSION = re.compile(r"(?:versions?|ver\.?|release|build|firmware|[<>=~]=|\bv)\s*$", re.IGNORECASE)
CARD = re.compile(r"[3-6]\d{3}(?:[ \-]?\d){9,15}(?![\w]|[.\-]\d)|2[2-7]\d{2}(?:[ \-]?\d{4}){3}" + END)
IBAN = re.compile(r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?" + END)
PHONE = re.compile(r"(?:\+|00)?\(?\d(?:[ .\-/\u00a0]{0,2}[()]?[ ]?\d){6,14}(?![\w]|[.,\-/]\d)")
# Where at least seven digits stand together: cards, numbered ids and phone numbers are looked for only there.
DIGITS = re.compile(r"\d(?:[ .\-/()+\u00a0A]{0,3}\d){6,}")
PHONE_CUE = re.compile(
    r"(?:phone|tel(?:efon)?|call(?: me)?(?: at| on)?|mobile|cell|whatsapp|fax|ring)"
    r"[^A-Za-z0-9\n]{0,4}(?:is |no\.? |number[: ]*)?$",
    re.IGNORECASE,
)
NORTH_AMERICAN = re.compile(r"\(\d{3}\) ?\d{3}[ .\-]\d{4}|(?:1-)?\d{3}([.\-])\d{3}\1\d{4}")
TRUNK_ZERO = re.compile(r"\(?0[1-9]\d{0,4}\)?[ /\-.]{1,2}\d[\d \-/.]{4,}")
DATE = re.compile(r"(?:19|20)\d\d[\-./]\d{1,2}[\-./]\d{1,2}|\d{1,2}[\-./]\d{1,2}[\-./](?:19|20)\d\d")
TRUNK_REGIONS = ("GB", "DE", "FR", "NL", "SE", "IT", "AU", "JP", "BE", "CH", "AT", "IN")
CUE_REGIONS = ("US", "GB", "ES", "NO", "DK", "PL", "PT", "BR", "IN", "MX")

LETTER_IDS: tuple[tuple[re.Pattern[str], Callable[[str], bool]], ...] = (
    (re.compile(r"[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]" + END), codicefiscale.is_valid),
    (re.compile(r"[XYZ]-?\d{7}-?[A-Z]" + END), nie.is_valid),
)
DIGIT_IDS: tuple[tuple[re.Pattern[str], Callable[[str], bool]], ...] = (
    (re.compile(r"\d{8}-?[A-HJ-NP-TV-Z]" + END), dni.is_valid),
    (re.compile(r"\d{3}\.\d{3}\.\d{3}-\d{2}" + END), cpf.is_valid),
    (re.compile(r"\d{3}-\d{2}-\d{4}(?![\w\-])"), ssn.is_valid),
    (re.compile(r"[12] ?\d\d ?(?:0[1-9]|1[0-2]) ?\d[\dAB] ?\d{3} ?\d{3} ?\d\d" + END), nir.is_valid),
    (re.compile(r"\d{6}[+\-A]\d{3}[0-9A-Y]" + END), hetu.is_valid),
    (re.compile(r"(?:19|20)?\d{6}[\-+]\d{4}" + END), personnummer.is_valid),
    (re.compile(r"[2-9]\d{3} \d{4} \d{4}" + END), lambda s: bool(verhoeff.is_valid(s.replace(" ", "")))),
)
# A bare run of digits passes a checksum by chance: these count only after a cue.
ID_CUE = re.compile(
    r"\b(?:ssn|social security|national id|identity|tax (?:id|number)|steuer-?id|id(?:nr| number)|bsn|burger\w+|pesel"
    r"|cpf|nhs|aadhaar|sin|nino|national insurance|passport|insee)\b[^0-9A-Z\n]{0,6}"
    r"(?:(?:[Nn]o\.?|[Nn]umber|[Ii]s)\b[^0-9A-Z\n]{0,4}){0,2}",
    re.IGNORECASE,
)
ID_CUE_WORDS = (
    "ssn", "social sec", "national i", "identity", "tax ", "steuer", "id nr", "idnr", "id number", "bsn", "burger",
    "pesel", "cpf", "nhs", "aadhaar", "sin ", "nino", "passport", "insee",
)  # fmt: skip
CUED_IDS: tuple[tuple[re.Pattern[str], Callable[[str], bool]], ...] = (
    (re.compile(r"\d{3}[ \-]\d{3}[ \-]\d{3}" + END), sin.is_valid),
    (re.compile(r"\d{3} ?\d{3} ?\d{4}" + END), nhs.is_valid),
    (re.compile(r"\d{11}" + END), lambda s: bool(pesel.is_valid(s) or idnr.is_valid(s) or cpf.is_valid(s))),
    (re.compile(r"\d{9}" + END), lambda s: bool(bsn.is_valid(s) or ssn.is_valid(s) or sin.is_valid(s))),
    (re.compile(r"\d{4} ?\d{4} ?\d{4}" + END), lambda s: bool(verhoeff.is_valid(s.replace(" ", "")))),
    (re.compile(r"[A-Z]{2} ?\d{2} ?\d{2} ?\d{2} ?[A-D]" + END), lambda _: True),
)

PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
URL_LOGIN = re.compile(r"(?<=://)[^\s/:@?#\"'<>]*:[^\s/@\"'<>]+(?=@)")
JWT = re.compile(r"eyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{4,}(?:\.[A-Za-z0-9_\-]*)?")
BEARER = re.compile(r"\b(?:Bearer|Basic|Token) +([A-Za-z0-9._~+/\-]{16,}=*)")
OWN_KEYS = re.compile(
    r"\b(?:sk-(?:ant|proj|or|live|svcacct)-[A-Za-z0-9_\-]{16,}|AIza[A-Za-z0-9_\-]{35}|hf_[A-Za-z0-9]{30,}"
    r"|github_pat_[A-Za-z0-9_]{22,}|ya29\.[A-Za-z0-9_\-]{20,}|glsa_[A-Za-z0-9_]{32,}|\d{8,10}:AA[A-Za-z0-9_\-]{33})"
)
ASSIGNED = re.compile(
    r"(?P<name>passw(?:or)?d|passwd|pwd|passphrase|passcode|secret|(?:api|access|auth|account|service|client|private|encryption)"
    r"[_\-]?key|token|credential)(?P<more>[_\-]?(?:key|id|value|hash|secret)?\d{0,2})"
    r"(?P<how>\\*[\"'`]?\]?\s{0,3}(?::=|=>|={1,3}|:)\s{0,3}|\s+(?:is|was)\s+)@?(?P<open>\\*[\"'`])?"
    r"(?P<value>[^\s\"'`,;<>()\\]{4,200})",
    re.IGNORECASE,
)
ASSIGNED_WORDS = ("passw", "pwd", "passphrase", "passcode", "secret", "key", "token", "credential")
QUOTED_RANDOM = re.compile(r"[\"']([A-Za-z0-9+/_\-]{32,120}={0,2})(?=\\?[\"'])")

# Left out: plugins of the IBM family and Telegram (OWN_KEYS and ASSIGNED cover their forms at a tenth of the time),
# IPPublic (private addresses count here too), and the entropy plugins (they flag commit hashes; see QUOTED_RANDOM).
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
    NpmDetector: ("_authToken",),
    OpenAIDetector: ("T3BlbkFJ",),
    PypiTokenDetector: ("pypi-Ag",),
    SendGridDetector: ("SG.",),
    SlackDetector: ("xox", "hooks.slack.com"),
    SquareOAuthDetector: ("sq0csp-",),
    StripeDetector: ("k_live_",),
    TwilioKeyDetector: (),
}


def _patterns(plugin: type[RegexBasedDetector]) -> Iterable[re.Pattern[str]]:
    return cast("Iterable[re.Pattern[str]]", plugin.denylist)  # declared as a property, set as a class attribute


KEY_PATTERNS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (OWN_KEYS, ("sk-", "AIza", "hf_", "github_pat_", "ya29.", "glsa_", ":AA")),
    *((pattern, hints) for plugin, hints in PLUGINS.items() for pattern in _patterns(plugin)),
)


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
    for pattern, hints in KEY_PATTERNS:
        if not hints or any(hint in text for hint in hints):
            yield from filter(None, map(_key_span, pattern.finditer(text)))


def find_assigned(text: str) -> Iterator[Span]:
    """Values given to something called password, secret, key or token; and long random strings in quotes."""
    lowered = text.lower()
    if any(word in lowered for word in ASSIGNED_WORDS):
        yield from (m.span("value") for m in ASSIGNED.finditer(text) if _is_secret_value(m))
    yield from (m.span(1) for m in QUOTED_RANDOM.finditer(text) if _is_random(m[1]))


def find_emails(text: str) -> Iterator[Span]:
    """E-mail addresses."""
    if "@" in text:
        yield from (m.span() for m in EMAIL.finditer(text))


def find_ibans(text: str) -> Iterator[Span]:
    """Bank accounts with a valid IBAN checksum, also when words follow the last group."""
    for m in IBAN.finditer(text):
        value = m.group() if _starts_word(text, m.start()) else ""
        while value and not iban.is_valid(value):
            value = value.rpartition(" ")[0]
        if value:
            yield m.start(), m.start() + len(value)


def find_cards(text: str) -> Iterator[Span]:
    """Payment card numbers: 13 to 19 digits of a card network's range that pass Luhn."""
    for start, end in _windows(DIGITS, text, 2, 2):
        for m in CARD.finditer(text, start, end):
            digits = re.sub(r"\D", "", m.group())
            if 13 <= len(digits) <= 19 and _starts_word(text, m.start(), ".-") and luhn.is_valid(digits):
                yield m.span()


def find_national_ids(text: str) -> Iterator[Span]:
    """National identity and tax numbers of thirteen countries by checksum, bare digits only after a cue."""
    for pattern, check in LETTER_IDS:
        yield from (m.span() for m in pattern.finditer(text) if _starts_word(text, m.start()) and check(m.group()))
    for start, end in _windows(DIGITS, text, 2, 3):
        for pattern, check in DIGIT_IDS:
            for m in pattern.finditer(text, start, end):
                if _starts_word(text, m.start(), ".-+") and check(m.group()):
                    yield m.span()
    lowered = text.lower()
    for cue in ID_CUE.finditer(text) if any(word in lowered for word in ID_CUE_WORDS) else ():
        for pattern, check in CUED_IDS:
            if (found := pattern.match(text, cue.end())) and check(found.group()):
                yield found.span()


def find_phones(text: str) -> Iterator[Span]:
    """Phone numbers valid in a number plan: international, in a national way of writing, or bare after a cue."""
    for start, end in _windows(DIGITS, text, 3, 2):
        for m in PHONE.finditer(text, start, end):
            if DATE.match(m.group()) or not _starts_word(text, m.start(), ".,/#=-+"):
                continue
            cue = PHONE_CUE.search(text, max(0, m.start() - 24), m.start())
            if _is_phone(m.group(), cue is not None):
                yield m.span()


def find_ips(text: str) -> Iterator[Span]:
    """IPv4 and IPv6 addresses, private ones too; not loopback, netmasks or version numbers."""
    for m in IPV4.finditer(text):
        version = VERSION.search(text, max(0, m.start() - 12), m.start())
        if not version and _starts_word(text, m.start(), ".") and _is_ip(m.group()):
            yield m.span()
    if IPV6_HINT.search(text):
        for m in IPV6.finditer(text):
            if re.search(r"\d", m.group()) and _starts_word(text, m.start(), ":.") and _is_ip(m.group()):
                yield m.span()


def find_homes(text: str) -> Iterator[Span]:
    """Home directories up to the user's name, on Linux, macOS and Windows."""
    if "/home/" in text or "Users" in text or "/root" in text:
        yield from (m.span() for m in HOME.finditer(text) if not SHARED_HOMES.search(m.group()))


# In this order: a key block may hold what looks like a password, a password what looks like an address.
FINDERS: tuple[tuple[str, Finder], ...] = (
    ("SECRET", find_private_keys),
    ("SECRET", find_logins),
    ("SECRET", find_keys),
    ("SECRET", find_assigned),
    ("EMAIL", find_emails),
    ("IBAN", find_ibans),
    ("CARD", find_cards),
    ("ID", find_national_ids),
    ("PHONE", find_phones),
    ("IP", find_ips),
    ("HOME", find_homes),
)


def _windows(pattern: re.Pattern[str], text: str, before: int, after: int) -> Iterator[Span]:
    """Where `pattern` matches, widened by some characters, overlapping windows joined."""
    start, end = -1, -1
    for m in pattern.finditer(text):
        if m.start() - before > end:
            if end >= 0:
                yield start, end
            start = max(0, m.start() - before)
        end = min(len(text), m.end() + after)
    if end >= 0:
        yield start, end


def _starts_word(text: str, at: int, also: str = "") -> bool:
    """No letter, digit, underscore or one of `also` before `at`.

    A log often holds JSON inside text, where a line starts with the two characters \\n: those do not count as a letter.
    """
    before = text[at - 1 : at]
    if before and before in "nrt" and text[at - 2 : at - 1] == "\\":
        return True
    return not (before.isalnum() or (before != "" and before in "_" + also))


def _key_span(m: re.Match[str]) -> Span | None:
    """Some plugins capture the secret, others only a prefix: a group of twenty characters is the secret."""
    spans = [m.span(i) for i in range(1, len(m.groups()) + 1)]
    start, end = max(spans, key=lambda s: s[1] - s[0], default=m.span())
    start, end = (start, end) if end - start >= 20 else m.span()
    return (start, end) if re.search(r"\d", m.string[start:end]) else None


def _is_secret_value(m: re.Match[str]) -> bool:
    value, name, quoted = m["value"], m["name"].lower(), m["open"] is not None
    if heuristic.is_templated_secret(value) or heuristic.is_prefixed_with_dollar_sign(value) or value[0] in "[%{&*":
        return False
    if heuristic.is_sequential_string(value) or heuristic.is_not_alphanumeric_string(value):
        return name.startswith(("passw", "pwd")) and value.isdigit() and len(value) >= 6
    if re.match(r"[\w.\-]+\[", value) or m.string.startswith("(", m.end("value")):
        return False  # a call or a look-up, not a value
    mixed = bool(re.search(r"\d", value)) and bool(re.search(r"[A-Za-z]", value))
    if m["how"].strip().lower() in ("is", "was"):
        return mixed
    if name.startswith(("passw", "pwd", "passc")):
        return mixed or bool(re.search(r"[^\w./]", value)) or (quoted and not re.search(r"[./]", value))
    return mixed and len(value) >= 8


@lru_cache(4096)
def _is_random(value: str) -> bool:
    """Letters of both cases and digits, few repeats, no path and no identifier made of words."""
    if not (re.search(r"[a-z]", value) and re.search(r"[A-Z]", value) and len(re.findall(r"\d", value)) >= 3):
        return False
    words = re.findall(r"[a-z]{5,}", value)
    return len(set(value)) >= 18 and sum(map(len, words)) * 3 < len(value) and value.count("/") < 4


@lru_cache(4096)
def _is_ip(value: str) -> bool:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or value.startswith("255."))


@lru_cache(8192)
def _is_phone(value: str, cue: bool) -> bool:
    if value.startswith(("+", "00")):
        return _valid_phone("+" + value.removeprefix("00").lstrip("+"), None)
    if NORTH_AMERICAN.fullmatch(value):
        return _valid_phone(value, "US")
    if TRUNK_ZERO.fullmatch(value):
        return any(_valid_phone(value, region) for region in TRUNK_REGIONS)
    return cue and any(_valid_phone(value, region) for region in (*CUE_REGIONS, *TRUNK_REGIONS))


def _valid_phone(value: str, region: str | None) -> bool:
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(value, region))
    except phonenumbers.NumberParseException:
        return False
