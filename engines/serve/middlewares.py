"""What stands around every handler: errors as the API has them, and the check of keys."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from engines.serve.api_key import ApiKeys
from engines.serve.openai_request import ApiError

CLIENT_GONE = 499  # nginx's

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as refusal:
        problem = refusal
    except web.HTTPException as error:
        problem = ApiError(error.status, f"{request.method} {request.path}: {error.reason}")
    except ConnectionError:  # the client disconnected: no response is read, and raising would log it as our error
        return web.Response(status=CLIENT_GONE)
    except Exception:
        traceback.print_exc(file=sys.stderr)
        problem = ApiError(500, "internal error; the server's log has the traceback")
    response = as_json(problem.body(), status=problem.status)
    if problem.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def only_with(keys: ApiKeys) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/v1") and not keys.allow(request.headers.get("Authorization")):
            raise ApiError(401, "wants a valid key in `Authorization: Bearer KEY`", code="invalid_api_key")
        return await handler(request)

    return check


def as_json(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")
