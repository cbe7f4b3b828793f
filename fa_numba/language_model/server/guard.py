"""Who may use the server: pages of its own, by the names of this machine, and holders of a key.

A server on a loopback address is reached by every page that the user's browser shows. Such a page
may send it requests, and even read the answers once its own name means 127.0.0.1 (DNS rebinding).
So an unknown name in `Host` is refused, by Starlette, and a page of another `Origin`, here.
"""

import secrets

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse

from fa_numba.language_model.server import completions

LOOPBACK = "localhost", "127.0.0.1", "[::1]"


def middleware(hosts, keys) -> list:
    """The middleware of an application.

    Parameters
    ----------
    hosts : sequence of str
        Names that `Host` may have; ("*",): any.
    keys : sequence of str
        One of which a request must bring; none: no request needs one.

    Returns
    -------
    list of starlette.middleware.Middleware
    """
    names = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    return [names, Middleware(Guard, keys=keys)]


class Guard:
    """ASGI middleware: refuse other origins and unknown keys; write whose key it is."""

    def __init__(self, app, keys):
        self.app, self.keys = app, [key.encode() for key in keys]

    async def __call__(self, scope, receive, send):
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)

    def _refusal(self, scope):
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            said = f"Origin must be this server, got {origin!r:.60}: other pages may not use it"
            return JSONResponse(completions.error_body(said), status_code=403)
        if not self.keys or scope["path"] == "/":  # the page has no secret, and asks with its key
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip().encode("latin-1")
        found = [secrets.compare_digest(key, known) for known in self.keys]  # all: constant time
        if scheme.lower() != "bearer" or not any(found):
            said = "Authorization must be Bearer and one of the server's keys"
            body = completions.error_body(said, kind="authentication_error")
            return JSONResponse(body, 401, headers={"www-authenticate": "Bearer"})
        scope["key"] = f"key {found.index(True) + 1}"  # the key itself is shown to nobody
        return None
