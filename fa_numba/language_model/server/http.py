"""The web server: completions as OpenAI has them, and a page that shows the server at work.

A request belongs to its connection: when the client is gone, the request is cancelled, and its
pages are free before the next step.
"""

import asyncio
import contextlib
import json
import secrets
import time
from importlib import resources

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fa_numba.language_model.server import completions, guard
from fa_numba.language_model.server.background import Background, Stopping
from fa_numba.language_model.server.completions import BadRequest, choice
from fa_numba.language_model.server.engine import Overloaded

CLIENT_CLOSED_REQUEST = 499  # for the log: the client has gone
SECONDS_TO_RETRY = 1
FAILURES = {  # message and status, by the reason for which an answer ended
    "cancelled": ("the server is stopping", 503),
    "error": ("the server failed while it answered", 500),
}


def make_app(engine, tokenizer, *, model="fa-numba", hosts=guard.LOOPBACK, keys=()):
    """The web application of an engine.

    Parameters
    ----------
    engine : Engine
        Started and stopped with the application.
    tokenizer
        ``encode(text, name)`` and ``decode(tokens)``, as of `Characters`.
    model : str, default="fa-numba"
        The name that requests may give.
    hosts, keys
        As for `guard.Guard`. With keys the server is fair to keys, else to addresses and to
        the users that requests name.

    Returns
    -------
    starlette.applications.Starlette
    """
    background = Background(engine)
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    @contextlib.asynccontextmanager
    async def lifespan(app):
        background.start()
        yield
        await asyncio.to_thread(background.stop)

    async def complete(request, chat=False):
        key = request.scope.get("key")
        client = key or (request.client.host if request.client else "")
        body = await _body(request)
        limits = {"known": key is not None, "queue": engine.max_waiting}
        call = completions.parse(body, tokenizer, model, client, chat=chat, **limits)
        reply = Reply(background, call)
        kind = f"chat.completion{'.chunk' * call.stream}" if chat else "text_completion"
        # A random name: numbers would come again after a restart.
        identifier = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        names = kind, identifier, model, int(time.time())
        gone = asyncio.create_task(_gone(request))
        if call.stream:
            return EventStream(reply, gone, _events(reply, gone, names, tokenizer.decode))
        try:
            async for _ in reply.pieces(gone):
                pass
        finally:
            gone.cancel()
            reply.close()
        if not reply.complete:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        if reply.failure:
            return _failure(*FAILURES[reply.failure])
        choices = completions.choices_of(call, reply.requests, tokenizer.decode)
        counts = completions.usage_of(reply.requests)
        return JSONResponse(completions.completion(*names, choices, counts))

    async def chat(request):
        return await complete(request, chat=True)

    only = {"id": model, "object": "model", "created": 0, "owned_by": "fa-numba"}

    async def models(request):
        return JSONResponse({"object": "list", "data": [only]})

    async def one_model(request):
        name = request.path_params["name"]
        if name != model:
            return _error(f"there is no model {name!r:.60}, only {model!r}", "model", 404)
        return JSONResponse(only)

    async def show(request):
        return HTMLResponse(page)

    async def state(request):
        return JSONResponse(background.view, headers={"cache-control": "no-store"})

    routes = [
        Route("/", show),
        Route("/state", state),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", one_model),
        Route("/v1/completions", complete, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
    ]
    handlers = {
        BadRequest: lambda request, error: _error(str(error), error.param, error.status),
        Overloaded: lambda request, error: _failure(str(error), 429, "rate_limit_error"),
        Stopping: lambda request, error: _failure(str(error), 503),
        ClientDisconnect: lambda request, error: Response(status_code=CLIENT_CLOSED_REQUEST),
        404: lambda request, error: _error(f"there is no {request.url.path}", status=404),
        405: lambda request, error: _error(
            f"{request.url.path} does not take {request.method}", status=405
        ),
    }
    app = Starlette(
        routes=routes,
        middleware=[Middleware(guard.Guard, hosts=hosts, keys=keys)],
        exception_handlers=handlers,
        lifespan=lifespan,
    )
    app.state.background = background
    return app


class Reply:
    """Requests to the engine, one for each prompt, seen from the web server's thread.

    Attributes
    ----------
    requests : list of Request
    complete : bool
        All answers have ended.
    failure : str or None
        The reason for which one has ended before its time.
    """

    def __init__(self, background, call):
        self.background, self.call, self._pieces = background, call, asyncio.Queue()
        loop = asyncio.get_running_loop()
        self.requests, self.complete, self.failure = [], False, None
        self._left = call.options.n * len(call.prompts)

        def listen(request, index, text, reason):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._pieces.put_nowait, (request, index, text, reason))

        try:
            for prompt in call.prompts:
                self.requests.append(background.submit(prompt, call.options, listen))
        except (TypeError, ValueError) as error:
            self.close()
            raise completions.bad_argument(error, call.names) from None
        except (Overloaded, Stopping):
            self.close()
            raise

    async def pieces(self, gone):
        """(request, index, text, reason) of each piece, until the last, or until `gone` is done."""
        while not self.complete:
            piece = asyncio.ensure_future(self._pieces.get())
            await asyncio.wait({piece, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not piece.done():
                piece.cancel()
                return
            reason = piece.result()[-1]
            self._left -= bool(reason)
            self.failure = reason if reason in FAILURES else None
            self.complete = not self._left
            if self.failure:
                self.close()
                self.complete = True
            yield piece.result()

    def close(self):
        """Cancel the requests, unless they are complete."""
        if not self.complete:
            for request in self.requests:
                self.background.cancel(request)


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


async def _events(reply, gone, names, decode):
    """The pieces of an answer, then its counts, then [DONE].

    The last piece of each answer has all of its log-probabilities.
    """
    call = reply.call

    def event(*piece):
        return _event(completions.completion(*names, [choice(call, *piece)]))

    if call.echo:
        for i, prompt in enumerate(call.prompts):
            for k in range(call.keep):
                yield event(i * call.keep + k, decode(prompt), None)
    async for request, index, text, reason in reply.pieces(gone):
        if reason in FAILURES:
            message, _ = FAILURES[reason]
            yield _event(completions.error_body(message, kind="server_error"))
            return
        found = None
        if reason:
            answer = next(a for a in request.answers if a.index == index)
            found = completions.logprobs_of(call, request, answer, decode)
        at = reply.requests.index(request) * call.keep + index
        yield event(at, text, reason, found)
    if call.usage and reply.complete:
        yield _event(completions.completion(*names, [], completions.usage_of(reply.requests)))
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


def _failure(message, status, kind="server_error"):
    """An error of the server's; a full one, or one that is stopping, may be asked again."""
    headers = {} if status == 500 else {"retry-after": str(SECONDS_TO_RETRY)}
    return _error(message, status=status, kind=kind, headers=headers)
