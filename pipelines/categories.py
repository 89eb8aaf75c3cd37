"""Puts tool names into the fixed categories and sessions into the fixed domains. Called by `pipelines.patterns`.

A tool name is private (it may name a partner's product); a category is not. So nothing but a category ever leaves here.
"""

import json
import re
from collections import Counter
from functools import lru_cache

from schemas.pattern import Category, Domain
from schemas.session import Session, ToolCall

# Whole names, lower case, without `functions.` and the like, and without separators.
NAMES: dict[str, Category] = {
    **dict.fromkeys(("bash", "shell", "terminal", "sh", "console", "runcommand", "executecommand", "cmd"), "shell"),
    **dict.fromkeys(("runshellcommand", "localshell", "shellcommand", "execcommand", "executebash", "exec"), "shell"),
    **dict.fromkeys(("python", "ipython", "jupyter", "codeinterpreter", "calculate", "calculator"), "run_code"),
    **dict.fromkeys(("read", "view", "cat", "open", "goto", "scrolldown", "scrollup", "notebookread"), "read_file"),
    **dict.fromkeys(("write", "create", "save", "touch", "mkdir", "mv", "cp", "rm", "echo"), "write_file"),
    **dict.fromkeys(("edit", "multiedit", "applypatch", "patch", "replace", "insert", "notebookedit"), "edit_file"),
    **dict.fromkeys(("strreplaceeditor", "strreplacebasededittool", "undoedit", "sed"), "edit_file"),
    **dict.fromkeys(("glob", "grep", "ls", "find", "search", "searchdir", "searchfile", "findfile", "rg"), "search"),
    **dict.fromkeys(("websearch", "webfetch", "browser", "browse", "click", "fetch", "curl", "googlesearch"), "web"),
    **dict.fromkeys(("todowrite", "todoread", "think", "plan", "updateplan", "exitplanmode", "reason"), "plan"),
    **dict.fromkeys(("task", "agent", "subagent", "delegate", "handoff", "spawn", "taskoutput"), "delegate"),
    **dict.fromkeys(("submit", "finish", "exit", "exitforfeit", "done", "finalanswer", "attemptcompletion"), "finish"),
    **dict.fromkeys(("askuserquestion", "askuser", "requestinput", "clarify", "confirm"), "ask_user"),
    **dict.fromkeys(("transfertohuman", "transfertohumanagents", "reply", "respond"), "message"),
}  # fmt: skip

# Editors that take what to do as an argument.
EDITOR_COMMANDS: dict[str, Category] = {"view": "read_file", "create": "write_file"}

# Else the first row of which any word is among the words of the name; `a+b` needs both, `^a` the first place.
WORDS: tuple[tuple[Category, str], ...] = (
    ("delegate", "teammate subagent delegate handoff spawn+agent assign+task invoke+agent transfer+agent run+agent"),
    ("ask_user", "ask+user clarify ask+human ask+question"),
    ("plan", "todo plan think reflect"),
    ("finish", "submit finish complete+task final+answer"),
    ("database", "sql database db query+table describe+table table+schema sqlite postgres"),
    ("web", "web browser browse url http wikipedia scrape navigate crawl internet"),
    ("run_code", "python notebook code+run code+execute interpreter eval calculate calculator math"),
    ("shell", "bash shell command terminal exec process container docker kubectl"),
    ("message", "message email+send send+mail notify post+update post+message reply comment slack+send transfer+human"),
    ("search", "grep glob tree ls list+files list+folder list+directory list+dir list+attachments"),
    ("search", "find+file search+file search+code search+dir"),
    ("edit_file", "edit patch replace+file update+file insert+line str+replace append+file"),
    ("write_file", "write write+file create+file save+file move+file rename+file copy+file delete+file remove+file"),
    ("write_file", "create+folder make+dir create+directory upload+file download+file"),
    ("read_file", "read view+file open+file cat file+content log+tail"),
    ("look_up", "^get ^find ^look ^lookup ^list ^search ^query ^check ^fetch ^retrieve ^show ^describe ^track ^verify"),
    ("transact", "book cancel update modify return exchange create add delete remove grant reset unlock refund pay"),
    ("transact", "set send schedule order+place buy sell register restart reboot transfer approve assign post put"),
    ("transact", "issue enable disable"),
    ("look_up", "get find look lookup list search query check fetch retrieve show describe load recommend compute"),
    ("look_up", "track verify validate authenticate"),
)  # fmt: skip

# Kind of work by words of the user's own text: patterns of whole words, where \x20 is a space. Tools have a say too.
DOMAIN_WORDS: dict[Domain, str] = {
    "data_analysis": (
        r"sql sqlite quer(?:y|ies) csv jsonl? rows? columns? tables? dataset dataframe spreadsheet revenue "
        r"averages? median outliers? per\x20(?:month|day|week|customer|product) group(?:ed)?\x20by joins? merge "
        r"dedup\w* totals? top\x20\d+"
    ),
    "software": (
        r"bugs? tests? pytest unit\x20tests? function method class refactor\w* repo(?:sitory)? commits? "
        r"stack\x20?trace traceback exception compil\w+ code parser api ci pull\x20request github implement\w* library "
        r"package module python docstring"
    ),
    "customer_support": (
        r"my\x20(?:order|account|booking|flight|reservation|card|subscription) orders? refunds? return "
        r"customers? accounts? delivery warranty cancel exchange reservations? flights? bookings? employee "
        r"log\x20?in shipping addresses moved"
    ),
    "operations": (
        r"incidents? alerts? disk hosts? services? deploy\w* outage restarts? logs? certificates? kubernetes "
        r"docker containers? latency cluster backup cron production staging servers? monitoring health\x20check "
        r"rollback ntp logrotate"
    ),
    "research": (
        r"stud(?:y|ies) papers? sources? literature published research articles? citations? survey\x20of "
        r"wikipedia history\x20of look\x20it\x20up on\x20the\x20web search\x20the\x20web news"
    ),
    "office": (
        r"folders? rename[ds]? move moved files? file\x20names? pdfs? photos? calendar meetings? documents? "
        r"slides invoices? archive charts attachments? markdown transcripts todo collect extract emails? mess "
        r"sorted count"
    ),
}
DOMAIN_TOOLS: dict[Category, tuple[Domain, float]] = {
    "database": ("data_analysis", 3.0),
    "run_code": ("data_analysis", 1.5),
    "edit_file": ("software", 1.5),
    "web": ("research", 4.0),
    "transact": ("customer_support", 3.0),
    "look_up": ("customer_support", 2.0),
}
MESSAGES_LOOKED_AT = 3
CHARACTERS_LOOKED_AT = 4000

_DOMAIN_WORDS: dict[Domain, re.Pattern[str]] = {
    domain: re.compile(rf"\b(?:{'|'.join(words.split())})\b") for domain, words in DOMAIN_WORDS.items()
}


@lru_cache(4096)
def tool_category(name: str) -> Category:
    """Category of a tool by its name alone."""
    last = re.split(r"[.:/]|__", name)[-1] or name
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", last)
    lowered = [w.lower() for w in words]
    if (exact := NAMES.get("".join(lowered))) is not None:
        return exact
    have = {*lowered, *(w.removesuffix("s") for w in lowered), *(f"^{w}" for w in lowered[:1])}
    for category, row in WORDS:
        if any(have.issuperset(alternative.split("+")) for alternative in row.split()):
            return category
    return "other"


def call_category(call: ToolCall) -> Category:
    """Category of a call: editors with a `command` argument are what the command says."""
    category = tool_category(call.name)
    if category == "edit_file" and '"command"' in call.arguments_json:
        command = _argument(call.arguments_json, "command")
        return EDITOR_COMMANDS.get(command, category)
    return category


def domain_of(session: Session, categories: Counter[Category]) -> Domain:
    """Kind of work, from the words of the user's first messages and the tools used; `other` when both say little."""
    asked = [m.content.lower() for m in session.messages if m.role == "user" and m.agent is None and m.content]
    text = "\n".join(message[:CHARACTERS_LOOKED_AT] for message in asked[:MESSAGES_LOOKED_AT])
    scores: dict[Domain, float] = {d: len(set(words.findall(text))) for d, words in _DOMAIN_WORDS.items()}
    total = sum(categories.values())
    for category, (domain, weight) in DOMAIN_TOOLS.items():
        scores[domain] += weight * categories[category] / total if total else 0.0
    best = max(scores, key=lambda d: scores[d])
    return best if scores[best] >= 1.0 else "other"


def _argument(arguments_json: str, name: str) -> str:
    try:
        value = json.loads(arguments_json)
    except ValueError:
        return ""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
