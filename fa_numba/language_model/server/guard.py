"""Who may use the server: pages of its own, by the names of this machine, and holders of a key.

A server on a loopback address is reached by every page that the user's browser shows. Such a page
may send it requests, and even read the answers once its own name means 127.0.0.1 (DNS rebinding).
So an unknown name in `Host` is refused, and a page of another `Origin`.
"""

import re
import secrets

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from fa_numba.language_model.server import completions

LOOPBACK = "localhost", "127.0.0.1", "[::1]"


class Guard:
    """ASGI middleware: refuse other names, origins and keys; write whose key it is.

    Parameters
    ----------
    app
    hosts : sequence of str
        Names that `Host` may have; ("*",): any.
    keys : sequence of str
        One of which a request must bring; none: no request needs one.
    """

    def __init__(self, app, hosts, keys):
        self.app, self.hosts, self.keys = app, hosts, [key.encode() for key in keys]

    async def __call__(self, scope, receive, send):
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)

    def _refusal(self, scope):
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if "*" not in self.hosts and re.sub(r":\d*$", "", host).lower() not in self.hosts:
            said = f"Host must be one of {', '.join(self.hosts)}, got {host!r:.60}"
            return JSONResponse(completions.error_body(said), status_code=400)
        if origin is not None and origin.partition("://")[2] != host:
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
