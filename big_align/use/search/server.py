"""A page in the browser that searches an index: its routes, and what keeps them safe.

It serves the page, thumbnails by their numbers, and answers in JSON: no path of a request ever
names a file. An upload is bounded in bytes while it is read and in pixels before it is decoded, and
only its embedding is kept. A request must arrive in time.
"""

import asyncio
import collections
import dataclasses
import hmac
import json
import secrets
import threading
from typing import Any
from urllib.parse import parse_qs

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from big_align.core.errors import UserError
from big_align.data.examples import BrokenExample
from big_align.data.json_texts import NotJson, parse_json
from big_align.pages.rendering import render
from big_align.pages.thumbnails import make_thumbnail
from big_align.use.search import queries
from big_align.use.search.search_index import Hit, SearchIndex
from big_align.use.search.stores.filters import split_filters

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that only this machine can reach; any other requires a token."""
IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff")
QUERY_BYTES = 65536
MOST_PARTS, MOST_TEXT, MOST_RESULTS, MOST_UPLOADS = 16, 1000, 500, 256
COOKIE = "token"
CONNECTIONS, WAITING = 64, 32
"""Connections at once, and how many of them may have sent no whole header."""
HEAD_SECONDS, SILENT_SECONDS, REQUEST_SECONDS = 10.0, 10.0, 120.0
"""Time for a header, between pieces of a body, and from a header until its answer is sent."""
ROUNDED_FROM = 2**53  # JavaScript reads numbers as doubles, which do not tell larger integers apart


class Refused(Exception):
    """A request that is refused: its status, and why."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


class SearchServer:
    """Answers the requests of the page; an upload has limits of bytes and pixels."""

    def __init__(self, index: SearchIndex, max_bytes: int, max_pixels: int):
        self._index, self._max_bytes, self._max_pixels = index, max_bytes, max_pixels
        self._uploads: collections.OrderedDict[str, np.ndarray] = collections.OrderedDict()
        self._working = threading.Lock()  # one query at a time uses all cores

    @property
    def _reads_texts(self) -> bool:
        model = self._index.model
        return bool(model.embeds("text") and model.tokenizer)

    def warm(self) -> None:
        """Embeds a text and an image, and loads what searches: the first query need not wait."""
        self._index.warm()
        if self._reads_texts:
            self._index.embed_text("warm")
        self._index.model.embed_images(np.zeros((512, 512, 3), np.uint8))

    def show_page(self, request: Request) -> Response:
        """Returns the page; only what is part of it may run there."""
        nonce = secrets.token_urlsafe(16)
        about = {
            "images": len(self._index),
            "captions": self._index.store.count("captions"),
            "texts": self._reads_texts,
            "columns": self._index.columns,
        }
        policy = (
            f"default-src 'none'; img-src 'self' blob:; style-src 'nonce-{nonce}'; script-src "
            f"'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
        page = render("search.html", title="Search", nonce=nonce, about=about)
        return HTMLResponse(page, headers=headers)

    def show_icon(self, request: Request) -> Response:
        """Returns the icon of the page."""
        return Response(render("icon.svg"), media_type="image/svg+xml")

    def show_thumbnail(self, request: Request) -> Response:
        """Returns the thumbnail of a row of the index."""
        asked = request.path_params["row"]
        row = int(asked) if asked.isdecimal() and len(asked) < 12 else -1
        jpeg = self._index.read_thumbnail(row) if self._index.store.has_image(row) else b""
        if not jpeg:
            return PlainTextResponse("there is no such thumbnail", 404)
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "no-cache"})

    async def upload(self, request: Request) -> Response:
        """Takes an image as the body; answers with its name for queries."""
        _check_type(request, IMAGE_TYPES)
        data = await _read_body(request, self._max_bytes)
        return _answer({"upload": await run_in_threadpool(self._embed_upload, data)})

    def _embed_upload(self, data: bytes) -> str:
        with self._working:
            try:
                make_thumbnail(data, 8, self._max_pixels)
            except BrokenExample as error:
                raise Refused(422, str(error)) from error
            vector = self._index.model.embed_images([data])[0]
            name = secrets.token_urlsafe(12)
            self._uploads[name] = vector
            while len(self._uploads) > MOST_UPLOADS:
                self._uploads.popitem(last=False)
        return name

    async def search(self, request: Request) -> Response:
        """Answers a query: {parts: [{text | row | upload, weight}], of, k, filters}.

        Filters are a list of conditions, or a text in which commas part them.
        """
        _check_type(request, ("application/json",))
        data = await _read_body(request, QUERY_BYTES)
        try:
            query = parse_json(data.decode())
        except NotJson as error:
            raise Refused(400, f"the query {error}") from error
        except UnicodeDecodeError as error:
            raise Refused(400, f"the query is not UTF-8 ({error})") from error
        return _answer({"hits": await run_in_threadpool(self._search, _check_query(query))})

    def _search(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        parts = query["parts"]
        texts = sum("text" in part for part in parts)
        default = queries.choose_weights(texts, len(parts) - texts)
        weights = [
            default[0 if "text" in part else -1] if part.get("weight") is None else part["weight"]
            for part in parts
        ]
        with self._working:
            vectors = np.stack([self._embed_part(part) for part in parts])
            hits = self._index.search_vector(
                queries.combine(vectors, weights), query["k"], query["of"], query["filters"]
            )
        return [_list_fields(hit) for hit in hits]

    def _embed_part(self, part: dict[str, Any]) -> np.ndarray:
        if "text" in part:
            return self._index.embed_text(part["text"])
        if "row" in part:
            return self._index.read_vector(self._index.find_row(part["row"]))
        if part["upload"] not in self._uploads:
            raise UserError("the uploaded image is no longer kept: upload it again")
        return self._uploads[part["upload"]]


def make_app(
    index: SearchIndex,
    token: str | None = None,
    max_bytes: int = 20 * 2**20,
    max_pixels: int = 50_000_000,
) -> Starlette:
    """Makes the application, with its model warm.

    Every request must have the token, in a cookie that `/?token=...` sets, or as a bearer; without
    a token, only requests for a host in `LOOPBACK` are admitted.
    """
    server = SearchServer(index, max_bytes, max_pixels)
    server.warm()
    routes = [
        Route("/", server.show_page),
        Route("/icon.svg", server.show_icon),
        Route("/thumbnail/{row}", server.show_thumbnail),
        Route("/upload", server.upload, methods=["POST"]),
        Route("/search", server.search, methods=["POST"]),
    ]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]"])
    if token is not None:
        guard = Middleware(TokenGuard, token=token)
    handlers = {Refused: _refuse, UserError: _refuse, ClientDisconnect: _refuse}
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)


class PatientProtocol(H11Protocol):
    """Ends connections that take too long, which uvicorn waits for without end.

    Of many without a whole header, the oldest makes room: one that is sent at once arrives.
    """

    _timer, _since = None, None  # what ends it, and since when it waits for a header

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for the first header."""
        super().connection_made(transport)
        self._wait_for_header()
        waiting = [each for each in self.connections if getattr(each, "_since", None) is not None]
        if len(waiting) > WAITING:
            min(waiting, key=lambda each: each._since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the waiting."""
        self._timer.cancel()
        self._since = None
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Begins to wait for the end of a request whose header is there."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._since = None
            self._end_after(REQUEST_SECONDS)

    def on_response_complete(self) -> None:
        """Begins to wait for the next header, and for a body that nobody reads to end."""
        self._wait_for_header()
        super().on_response_complete()

    def _wait_for_header(self) -> None:
        self._since = self.loop.time()
        self._end_after(HEAD_SECONDS)

    def _end_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.abort)


SETTINGS = {"limit_concurrency": CONNECTIONS, "http": PatientProtocol, "ws": "none"}  # uvicorn's


class TokenGuard:
    """Admits requests that have the token."""

    def __init__(self, app: ASGIApp, token: str):
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._is_right(request.cookies.get(COOKIE, "")) or self._is_right(bearer):
            await self._app(scope, receive, send)
        elif request.url.path == "/" and self._is_right(asked):
            response = RedirectResponse("/", 303, {"Referrer-Policy": "no-referrer"})
            response.set_cookie(COOKIE, asked, httponly=True, samesite="strict")
            await response(scope, receive, send)
        else:
            await PlainTextResponse("open the address with /?token=...", 401)(scope, receive, send)

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


def _check_type(request: Request, known: tuple[str, ...]) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in known:
        raise Refused(415, f"the type {kind!r} is none of {', '.join(known)}")


async def _read_body(request: Request, most: int) -> bytes:
    """Reads a body, and stops as soon as it is too large."""
    body, now = bytearray(), asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(SILENT_SECONDS) as limit:
            async for chunk in request.stream():
                limit.reschedule(now() + SILENT_SECONDS)
                body += chunk
                if len(body) > most:
                    raise Refused(413, f"there are more than {most / 2**20:.3g} MiB")
    except TimeoutError as error:
        raise Refused(408, f"nothing came for {SILENT_SECONDS:g} seconds") from error
    if not body:
        raise Refused(400, "the request is empty")
    return bytes(body)


def _check_query(query: Any) -> dict[str, Any]:
    """Returns a query with its defaults; raises Refused if a field is not what it should be."""
    query = query if isinstance(query, dict) else {}
    query = {"k": 30, "of": "images", "filters": []} | query
    parts, filters, k = query.get("parts"), query["filters"], query["k"]
    if not isinstance(parts, list) or not parts:
        raise Refused(400, "the query is empty: write a text, or choose an image")
    if len(parts) > MOST_PARTS or not all(map(_is_part, parts)):
        raise Refused(400, f"a query has up to {MOST_PARTS} parts, each a text, row or upload")
    if isinstance(filters, str) and len(filters) <= MOST_TEXT:
        query["filters"] = filters = split_filters(filters)
    texts = isinstance(filters, list) and all(isinstance(text, str) for text in filters)
    if not texts or len(filters) > MOST_PARTS or sum(map(len, filters)) > MOST_TEXT:
        raise Refused(400, f"filters are up to {MOST_PARTS} texts, {MOST_TEXT} characters in all")
    if type(k) is not int or not 1 <= k <= MOST_RESULTS:
        raise Refused(400, f"k is from 1 to {MOST_RESULTS}")
    return query


def _is_part(part: Any) -> bool:
    if not isinstance(part, dict) or len({"text", "row", "upload"} & part.keys()) != 1:
        return False
    weight = part.get("weight")
    number = type(weight) in (int, float) and abs(weight) <= 100
    text = part.get("text", part.get("upload", ""))
    named = isinstance(text, str) and len(text) <= MOST_TEXT
    return named and type(part.get("row", 0)) is int and (weight is None or number)


def _list_fields(hit: Hit) -> dict[str, Any]:
    """Returns the fields of a hit; integers that JavaScript would round are texts."""
    metadata = {
        name: str(value) if isinstance(value, int) and abs(value) >= ROUNDED_FROM else value
        for name, value in hit.metadata.items()
    }
    return dataclasses.asdict(hit) | {"metadata": metadata}


def _answer(content: dict[str, Any], status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(json.dumps(content, default=str), status, headers, "application/json")


def _refuse(request: Request, error: Exception) -> Response:
    return _answer({"error": str(error)}, getattr(error, "status", 400))
