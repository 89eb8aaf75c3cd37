"""The engine behind an OpenAI-compatible server. Made by `load`; called by `agents.swarm.policy`. No torch.

The transport is aiohttp's: httpx's own pool is scanned on every request and costs 40 times the CPU at 500 in flight.
Token ids are asked for as vLLM names them (`return_token_ids`); a server that refuses the field is asked without it,
and its replies then have no ids. Logprobs are what the server says; vLLM's are of the raw distribution unless
it runs with `--logprobs-mode processed_logprobs`.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import httpx
import stamina
from httpx_aiohttp import AiohttpTransport

from agents.engine.base import GenerateRequest, GenerateResult
from agents.engine.effort import reply_budget
from schemas.errors import ContextFull, EngineRefused, EngineUnavailable
from schemas.recipe import EngineSettings

ATTEMPTS = 6
"""Tries of one request, the first included."""
LONGEST_WAIT_S = 30.0
"""Longest pause between tries, whatever Retry-After asks for."""
_RETRIED = (408, 409, 425, 429)
# OpenAI's error code, and how vLLM and SGLang put it.
_FULL = re.compile(r"context_length_exceeded|maximum context length|longer than the model's context", re.IGNORECASE)


class _Transient(Exception):
    """A failure that may pass: connection, timeout, 429, 5xx, a broken body."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class HttpEngine:
    """`base.Engine` over HTTP, at most `concurrency` requests in flight."""

    def __init__(
        self,
        url: str,
        model: str,
        context: int,
        *,
        api_key: str | None = None,
        concurrency: int = 32,
        timeout_s: float = 300.0,
        attempts: int = ATTEMPTS,
        wait_initial_s: float = 0.5,
    ) -> None:
        """`url`: base of the API, e.g. http://127.0.0.1:8000/v1. `timeout_s`: silence on one request."""
        self.model = model
        self.context = context
        self._url = url.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._concurrency = concurrency
        self._timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0), pool=None)
        self._attempts = attempts
        self._wait_initial_s = wait_initial_s
        self._ask_ids = True
        self._client: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(concurrency)

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> "HttpEngine":
        """The client that the settings describe; the key comes from the environment."""
        return cls(
            settings.url or "",
            settings.model,
            settings.context,
            api_key=os.environ.get(settings.api_key_env),
            concurrency=settings.max_batch,
        )

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """One reply. EngineUnavailable after all tries, EngineRefused with the server's message when it says no."""
        async with self._slots:
            body = await self._post(_payload(request, self.model))
        return _result(body, request, self.model)

    def release(self, conversation: str) -> None:
        """Nothing is kept here."""

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _post(self, payload: dict[str, Any]) -> dict[str, Any]:
        retries = stamina.retry_context(
            on=_backoff,
            attempts=self._attempts,
            timeout=None,
            wait_initial=self._wait_initial_s,
            wait_max=LONGEST_WAIT_S,
            wait_jitter=self._wait_initial_s,
        )
        try:
            async for attempt in retries:
                with attempt:
                    return await self._try(payload)
        except _Transient as error:
            raise EngineUnavailable(f"{self._url}: {error} ({self._attempts} tries)") from error
        raise EngineUnavailable(f"{self._url}: not tried")

    async def _try(self, payload: dict[str, Any]) -> dict[str, Any]:
        asked = payload | {"return_token_ids": True} if self._ask_ids else payload
        response = await self._send(asked)
        if response.status_code == 400 and self._ask_ids and "return_token_ids" in response.text:
            self._ask_ids = False
            response = await self._send(payload)
        status = response.status_code
        if status in _RETRIED or status >= 500:
            raise _Transient(f"HTTP {status}: {_message(response)}", _retry_after(response))
        if status >= 300:
            refused = ContextFull if _FULL.search(response.text) else EngineRefused
            hint = " (for a server without structured outputs: engine.constrain_tools: false)"
            unstructured = "structured_outputs" in payload and "structured_outputs" in response.text
            raise refused(f"{self._url}: HTTP {status}: {_message(response)}{hint if unstructured else ''}")
        try:
            body = response.json()
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise _Transient(f"the answer is not JSON: {error}") from error
        if not _is_completion(body):
            raise _Transient("the answer is no chat completion")
        return dict(body)

    async def _send(self, payload: dict[str, Any]) -> httpx.Response:
        if self._client is None:
            limits = httpx.Limits(max_connections=self._concurrency, max_keepalive_connections=self._concurrency)
            self._client = httpx.AsyncClient(
                transport=AiohttpTransport(limits=limits), headers=self._headers, timeout=self._timeout
            )
        try:
            return await self._client.post(self._url, json=payload)
        except httpx.TransportError as error:
            raise _Transient(f"{type(error).__name__}: {error}") from error


def _backoff(error: Exception) -> bool | float:
    if not isinstance(error, _Transient):
        return False
    return True if error.retry_after is None else min(error.retry_after, LONGEST_WAIT_S)


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds of a Retry-After header; the form with a date is left to the usual backoff."""
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def _message(response: httpx.Response) -> str:
    """What the server says, whichever way it puts it, cut to one line."""
    try:
        body = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        body = response.text
    if isinstance(body, Mapping):
        error = body.get("error", body.get("message", body.get("detail", body)))
        body = error.get("message", error) if isinstance(error, Mapping) else error
    return " ".join(str(body).split())[:500]


def _payload(request: GenerateRequest, model: str) -> dict[str, Any]:
    sampling = request.sampling
    payload: dict[str, Any] = {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        "max_tokens": reply_budget(sampling.effort, sampling.max_tokens),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed % 2**63,
        "logprobs": True,
    }
    if sampling.stop:
        payload["stop"] = list(sampling.stop)
    if request.grammar is not None:
        payload["structured_outputs"] = {"grammar": request.grammar}
    return payload


def _is_completion(body: Any) -> bool:
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        return False
    return isinstance(choices[0].get("message"), Mapping)


def _result(body: Mapping[str, Any], request: GenerateRequest, model: str) -> GenerateResult:
    choice = body["choices"][0]
    prompt_ids, output_ids = _ids(body.get("prompt_token_ids")), _ids(choice.get("token_ids"))
    logprobs = _logprobs(choice)
    context = request.context_ids
    # A server that encodes the conversation anew may get other ids than those sampled before: then none can be trusted.
    exact = prompt_ids is not None and prompt_ids[: len(context)] == context
    if not exact or output_ids is None or logprobs is None or len(logprobs) != len(output_ids):
        prompt_ids = output_ids = logprobs = None
    usage = body.get("usage") or {}
    return GenerateResult(
        text=choice["message"].get("content") or "",
        finish_reason="length" if choice.get("finish_reason") == "length" else "stop",
        prompt_ids=None if prompt_ids is None else prompt_ids[len(context) :],
        output_ids=output_ids,
        logprobs=logprobs,
        policy_version=str(body.get("system_fingerprint") or body.get("model") or model),
        cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
    )


def _ids(value: Any) -> tuple[int, ...] | None:
    return tuple(value) if isinstance(value, list) and all(isinstance(i, int) for i in value) else None


def _logprobs(choice: Mapping[str, Any]) -> tuple[float, ...] | None:
    content = (choice.get("logprobs") or {}).get("content")
    if not isinstance(content, list):
        return None
    try:
        return tuple(float(entry["logprob"]) for entry in content)
    except (KeyError, TypeError, ValueError):
        return None
