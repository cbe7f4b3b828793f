"""The web server: completions as OpenAI has them, and a page that shows the server at work.

A request belongs to its connection: when the client is gone, the request is cancelled, and its
pages are free before the next step.
"""

import asyncio
import contextlib
import itertools
import json
import time
from importlib import resources

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fa_numba.language_model.server import completions
from fa_numba.language_model.server.background import Background
from fa_numba.language_model.server.completions import BadRequest, choice
from fa_numba.language_model.server.engine import Overloaded

CLIENT_CLOSED_REQUEST = 499  # for the log: the client has gone
SECONDS_TO_RETRY = 1
FAILURES = {  # message and status, by the reason for which an answer ended
    "cancelled": ("the server is stopping", 503),
    "error": ("the server failed while it answered", 500),
}


def make_app(engine, tokenizer, *, model="fa-numba"):
    """The web application of an engine.

    Parameters
    ----------
    engine : Engine
        Started and stopped with the application.
    tokenizer
        ``encode(text, name)`` and ``decode(tokens)``, as of `Characters`.
    model : str, default="fa-numba"
        The name that requests may give.

    Returns
    -------
    starlette.applications.Starlette
    """
    background, numbers = Background(engine), itertools.count()
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    @contextlib.asynccontextmanager
    async def lifespan(app):
        background.start()
        yield
        await asyncio.to_thread(background.stop)

    async def complete(request):
        host = request.client.host if request.client else ""
        body = await _body(request)
        prompt, options, stream, usage = completions.parse(body, tokenizer, model, host)
        reply = Reply(background, prompt, options)
        names = f"cmpl-{next(numbers)}", model, int(time.time())
        gone = asyncio.create_task(_gone(request))
        if stream:
            return EventStream(reply, gone, _events(reply, gone, names, usage))
        try:
            async for _ in reply.pieces(gone):
                pass
        finally:
            gone.cancel()
            reply.close()
        if not reply.complete:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        answers = sorted(reply.request.answers)
        for answer in answers:
            if answer.reason in FAILURES:
                message, status = FAILURES[answer.reason]
                return _error(message, status=status, kind="server_error")
        choices = [choice(a.index, a.text, a.reason) for a in answers]
        counts = completions.usage_of(reply.request)
        return JSONResponse(completions.completion(*names, choices, counts))

    async def models(request):
        only = {"id": model, "object": "model", "created": 0, "owned_by": "fa-numba"}
        return JSONResponse({"object": "list", "data": [only]})

    async def show(request):
        return HTMLResponse(page)

    async def state(request):
        return JSONResponse(background.view, headers={"cache-control": "no-store"})

    routes = [
        Route("/", show),
        Route("/state", state),
        Route("/v1/models", models),
        Route("/v1/completions", complete, methods=["POST"]),
    ]
    handlers = {
        BadRequest: lambda request, error: _error(str(error), error.param, error.status),
        Overloaded: _overloaded,
        ClientDisconnect: lambda request, error: Response(status_code=CLIENT_CLOSED_REQUEST),
        404: lambda request, error: _error(f"there is no {request.url.path}", status=404),
        405: lambda request, error: _error(
            f"{request.url.path} does not take {request.method}", status=405
        ),
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.state.background = background
    return app


class Reply:
    """A request to the engine, seen from the web server's thread.

    Parameters
    ----------
    background : Background
    prompt, options
        As for `Engine.submit`.

    Attributes
    ----------
    complete : bool
        All answers have ended.
    """

    def __init__(self, background, prompt, options):
        self.background, self._pieces = background, asyncio.Queue()
        loop = asyncio.get_running_loop()
        self.complete, self._left = False, options.n

        def listen(request, index, text, reason):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._pieces.put_nowait, (index, text, reason))

        try:
            self.request = background.submit(prompt, options, listen)
        except (TypeError, ValueError) as error:
            raise completions.bad_argument(error) from None

    async def pieces(self, gone):
        """(index, text, reason) of each piece, until the last one, or until `gone` is done."""
        while not self.complete:
            piece = asyncio.ensure_future(self._pieces.get())
            await asyncio.wait({piece, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not piece.done():
                piece.cancel()
                return
            _, _, reason = piece.result()
            self._left -= bool(reason)
            self.complete = not self._left or reason in FAILURES
            yield piece.result()

    def close(self):
        """Cancel the request, unless it is complete."""
        if not self.complete:
            self.background.cancel(self.request)


class EventStream(StreamingResponse):
    """Server-sent events of a reply, which ends with them, however that comes."""

    media_type = "text/event-stream"

    def __init__(self, reply, gone, events):
        super().__init__(events, headers={"cache-control": "no-store"})
        self.reply, self.gone = reply, gone

    async def __call__(self, scope, receive, send):
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.gone.cancel()
            self.reply.close()


async def _events(reply, gone, names, usage):
    """The pieces of an answer, then its counts, then [DONE]."""
    async for index, text, reason in reply.pieces(gone):
        if reason in FAILURES:
            message, _ = FAILURES[reason]
            yield _event(completions.error_body(message, kind="server_error"))
            return
        yield _event(completions.completion(*names, [choice(index, text, reason)]))
    if usage and reply.complete:
        yield _event(completions.completion(*names, [], completions.usage_of(reply.request)))
    yield "data: [DONE]\n\n"


def _event(body):
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


async def _body(request):
    """The body of a request, or as much of it as shows that it is too long."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > completions.MAX_BODY:
            break
    return body


async def _gone(request):
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _error(message, param=None, status=400, kind="invalid_request_error", **options):
    body = completions.error_body(message, param, kind)
    return JSONResponse(body, status_code=status, **options)


def _overloaded(request, error):
    headers = {"retry-after": str(SECONDS_TO_RETRY)}
    return _error(str(error), status=429, kind="rate_limit_error", headers=headers)
