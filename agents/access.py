"""Who may ask a server of ours: rules that the node agent and the engine's server share. Called by their guards."""

import ipaddress
import os

from schemas.errors import ConfigError

TOKEN_LENGTH = 16
"""At least so many characters."""


def is_loopback(host: str) -> bool:
    """Can it be reached from this host only?"""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(header: bytes) -> str:
    """Of a Host header, without its port."""
    text = header.decode("latin-1")
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


def token_from(variable: str | None, host: str) -> str | None:
    """The token in an environment variable. ConfigError when it is missing, too short, or needed and not named."""
    if variable is None:
        if not is_loopback(host):
            raise ConfigError(f"a server on {host} can be reached by others: name a variable that holds a token")
        return None
    token = os.environ.get(variable, "")
    if len(token) < TOKEN_LENGTH or not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"${variable} must hold a token of at least {TOKEN_LENGTH} ASCII characters without spaces")
    return token
