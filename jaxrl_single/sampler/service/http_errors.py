"""What the service answers when it can't do what was asked: a status code and OpenAI's JSON shape.

{"error": {"message": ..., "type": ..., "param": field or null, "code": name or null}}
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from aiohttp import web

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_ROUTES = (
    "of OpenAI's endpoints there are /v1/chat/completions, /v1/completions and /v1/models; the "
    "Responses API is not served, let your client use /v1/chat/completions"
)
NOT_FINITE = "not_finite"  # code of a request that the weights compute no finite numbers for
_log = logging.getLogger(__name__)


class ApiError(Exception):
    """Ends the handling of a request.

    Attributes:
      status: HTTP status code.
      message: for people.
      param: name of the field that is wrong, if it is one.
      code: a name that programs may test.
      retry_after_s: after so many seconds the same request may succeed; None = never.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The JSON object that the client gets."""
        kind = _TYPES.get(self.status, "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> web.Response:
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return json_response(self.body(), status=self.status, headers=headers)


def json_text(body: Any) -> str:
    """Strict JSON, which every client can read.

    Raises:
      FloatingPointError: a number is NaN or infinite.
    """
    try:
        return json.dumps(body, allow_nan=False)
    except ValueError as error:
        raise FloatingPointError(f"the answer is no strict JSON: {error}") from error


def json_response(
    body: Any, *, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})
) -> web.Response:
    """An answer of strict JSON; errors as of `json_text`."""
    return web.json_response(text=json_text(body), status=status, headers=headers)


def wrong(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request itself is wrong: 400."""
    return ApiError(400, message, param=param, code=code)


def from_exception(error: Exception) -> ApiError:
    """The answer to any exception of a handler.

    ValueError comes from the engine's checks of a request, RecursionError from what is nested too
    deeply in one, FloatingPointError from weights that compute no finite numbers for it, any other
    RuntimeError from an engine that failed or was stopped; whatever else is a mistake of ours, and
    is logged.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValueError):
        return wrong(str(error))
    if isinstance(error, RecursionError):
        return wrong("the request is nested too deeply")
    if isinstance(error, FloatingPointError):
        return ApiError(500, str(error), code=NOT_FINITE)
    if isinstance(error, RuntimeError):
        return ApiError(503, str(error), code="sampler_unavailable")
    _log.error("a request failed", exc_info=error)
    return ApiError(500, f"the server made a mistake: {type(error).__name__}; see its log")


@web.middleware
async def as_json(request: web.Request, handler) -> web.StreamResponse:
    """Turns what handlers raise into answers."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _of_http(request, error).response()
    except Exception as error:
        return from_exception(error).response()


async def read_json(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object; a missing body is an empty one.

    Raises:
      ApiError: 400, it can't be read or is no JSON object; 413, it is too large.
    """
    try:
        body = await request.read()
    except web.RequestPayloadError as error:
        raise wrong(f"the body can't be read: {str(error).strip():.200}") from None
    if not body.strip():
        return {}
    try:
        found = json.loads(
            body.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite_float
        )
    except RecursionError:
        raise wrong("the body is nested too deeply") from None
    except ValueError as error:
        raise wrong(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise wrong(f"the body is a JSON {type(found).__name__}, expected an object")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text:.40} is too large")
    return number


def _of_http(request: web.Request, error: web.HTTPException) -> ApiError:
    where = f"{request.method} {request.path}"
    if error.status == 404:
        message = f"no such route: {where}; {_ROUTES}"
        return ApiError(404, message, code="unknown_route")
    if error.status == 405:
        return ApiError(405, f"no such method: {where}", code="unknown_method")
    if error.status == 413:
        return ApiError(413, f"the body is too large: {error.text}", code="body_too_large")
    return ApiError(error.status, error.text or error.reason)
