"""Finds personal data in text, each finder yielding spans. Used by `pipelines.redact` only.

Checksums and number plans come from python-stdnum and phonenumbers; what stands here is where to look and what to
leave alone.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from functools import lru_cache

import phonenumbers
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

# A log often holds JSON inside text, where a line starts with the two characters \n: a letter before the value.
START = r"(?:(?<![A-Za-z0-9_\\])|(?<=\\[nrt])|(?<=\\)(?![nrt]))"
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
IPV6 = re.compile(r"(?<![\w.])[0-9A-Fa-f:]{3,39}(?:\.\d{1,3}){0,3}(?!\w)")
IPV4_HINT = re.compile(r"\.\d{1,3}\.\d")
IPV6_HINT = re.compile(r":[0-9A-Fa-f]{1,4}:[0-9A-Fa-f]{1,4}:[0-9A-Fa-f]{1,4}:")
VERSION = re.compile(r"(?:versions?|ver\.?|release|build|firmware|[<>=~]=|\bv)\s*$", re.IGNORECASE)
CARD = re.compile(r"[3-6]\d{3}(?:[ \-]?\d){9,15}(?![\w]|[.\-]\d)|2[2-7]\d{2}(?:[ \-]?\d{4}){3}" + END)
IBAN = re.compile(r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?" + END)
PHONE = re.compile(r"(?:\+|00)?\(?\d(?:[ .\-/\u00a0]{0,2}[()]?[ ]?\d){6,14}(?![\w]|[.,\-/]\d)")
# Cards, numbered ids and phone numbers are looked for only where this matches.
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
    for start, end in _digit_windows(text):
        for m in CARD.finditer(text, start, end):
            digits = re.sub(r"\D", "", m.group())
            if 13 <= len(digits) <= 19 and _starts_word(text, m.start(), ".-") and luhn.is_valid(digits):
                yield m.span()


def find_national_ids(text: str) -> Iterator[Span]:
    """National identity and tax numbers of thirteen countries by checksum, bare digits only after a cue."""
    for pattern, check in LETTER_IDS:
        yield from (m.span() for m in pattern.finditer(text) if _starts_word(text, m.start()) and check(m.group()))
    for start, end in _digit_windows(text):
        for pattern, check in DIGIT_IDS:
            for m in pattern.finditer(text, start, end):
                if _starts_word(text, m.start(), ".-+") and check(m.group()):
                    yield m.span()
    lowered = text.lower()
    for cue in ID_CUE.finditer(text) if [word for word in ID_CUE_WORDS if word in lowered] else ():
        for pattern, check in CUED_IDS:
            if (found := pattern.match(text, cue.end())) and check(found.group()):
                yield found.span()


def find_phones(text: str) -> Iterator[Span]:
    """Phone numbers valid in a number plan: international, in a national way of writing, or bare after a cue."""
    for start, end in _digit_windows(text):
        for m in PHONE.finditer(text, start, end):
            if DATE.match(m.group()) or not _starts_word(text, m.start(), ".,/#=-+"):
                continue
            cue = PHONE_CUE.search(text, max(0, m.start() - 24), m.start())
            if _is_phone(m.group(), cue is not None):
                yield m.span()


def find_ips(text: str) -> Iterator[Span]:
    """IPv4 and IPv6 addresses, private ones too; not loopback, netmasks or version numbers."""
    for m in IPV4.finditer(text) if IPV4_HINT.search(text) else ():
        version = VERSION.search(text, max(0, m.start() - 12), m.start())
        if not version and _starts_word(text, m.start(), ".") and _is_ip(m.group()):
            yield m.span()
    for m in IPV6.finditer(text) if "::" in text or IPV6_HINT.search(text) else ():
        # A group of three digits or more: x[1::2] and std::a are no addresses.
        if re.search(r"[0-9A-Fa-f]{3}", m.group()) and re.search(r"\d", m.group()) and _is_ip(m.group()):
            yield m.span()


def find_homes(text: str) -> Iterator[Span]:
    """Home directories up to the user's name, on Linux, macOS and Windows."""
    if "/home/" in text or "Users" in text or "/root" in text:
        yield from (m.span() for m in HOME.finditer(text) if not SHARED_HOMES.search(m.group()))


@lru_cache(maxsize=1)
def _digit_windows(text: str) -> tuple[Span, ...]:
    """Where at least seven digits stand together, widened by a few characters. Three finders ask in a row."""
    spans: list[Span] = []
    for m in DIGITS.finditer(text):
        start, end = max(0, m.start() - 3), min(len(text), m.end() + 3)
        if spans and start <= spans[-1][1]:
            start = spans.pop()[0]
        spans.append((start, end))
    return tuple(spans)


def _starts_word(text: str, at: int, also: str = "") -> bool:
    """No letter, digit, underscore or one of `also` before `at`.

    A log often holds JSON inside text, where a line starts with the two characters \\n: those do not count as a letter.
    """
    before = text[at - 1 : at]
    if before and before in "nrt" and text[at - 2 : at - 1] == "\\":
        return True
    return not (before.isalnum() or (before != "" and before in "_" + also))


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
        return value.startswith("(") or _valid_phone(value, "US")
    if TRUNK_ZERO.fullmatch(value):
        return any(_valid_phone(value, region) for region in TRUNK_REGIONS)
    return cue and any(_valid_phone(value, region) for region in (*CUE_REGIONS, *TRUNK_REGIONS))


def _valid_phone(value: str, region: str | None) -> bool:
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(value, region))
    except phonenumbers.NumberParseException:
        return False
