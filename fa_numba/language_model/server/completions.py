"""Requests and answers in the JSON of OpenAI's completions.

https://platform.openai.com/docs/api-reference/completions explains the fields; `top_k` and
`beams` are ours. A field that would change the answer and is not supported is refused: an answer
that ignores it would be taken for one that does not.
"""

import json
import re
import secrets

from fa_numba.language_model.server.options import Options

MAX_BODY = 2**20  # bytes of a request
MAX_USER = 256  # characters
MAX_MESSAGE = 400  # characters of a refusal, which may quote the request
FIELDS = (
    "model prompt max_tokens temperature top_k top_p n beams stop seed user stream stream_options"
).split()
HARMLESS = {  # fields of other servers, at the values that change nothing
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None,),
    "presence_penalty": (None, 0),
    "suffix": (None, ""),
}


class BadRequest(ValueError):
    """A request that cannot be answered.

    Parameters
    ----------
    message : str
    param : str, default=None
        The field that is wrong.
    status : int, default=400
    """

    def __init__(self, message, param=None, status=400):
        super().__init__(message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ...")
        self.param, self.status = param, status


def bad_argument(error) -> BadRequest:
    """The refusal for an error of `checks`, whose message begins with the argument's name."""
    name = re.match(r"\w*", str(error))[0]
    return BadRequest(str(error), name if name in FIELDS else None)


def parse(body: bytes, tokenizer, model: str, client: str) -> tuple:
    """The parts of a request.

    Parameters
    ----------
    body : bytes
    tokenizer
        Its ``encode(text, name)`` returns tokens.
    model : str
        The only model here.
    client : str
        Who asks, if the request does not say.

    Returns
    -------
    prompt : list of int
    options : Options
    stream, usage : bool
        Whether to send the answer in pieces, and its counts after the last one.

    Raises
    ------
    BadRequest
    """
    fields = _object(body)
    for name in fields:
        if name in HARMLESS:
            if fields[name] not in HARMLESS[name]:
                raise BadRequest(f"{name} is not supported here", name)
        elif name not in FIELDS:
            said = f"there is no field {name!r:.60}; there are {', '.join(FIELDS)}"
            raise BadRequest(said, name[:60])
    if fields.get("model", model) != model:
        raise BadRequest(f"model must be {model!r}, got {fields['model']!r:.60}", "model", 404)
    if "prompt" not in fields:
        raise BadRequest("prompt is missing", "prompt")
    stream = _flag(fields, "stream")
    stream_options = fields.get("stream_options") or {}
    if not isinstance(stream_options, dict) or stream_options.keys() - {"include_usage"}:
        raise BadRequest("stream_options must be an object with include_usage", "stream_options")
    usage = _flag(stream_options, "include_usage")
    try:
        prompt = _prompt(fields["prompt"], tokenizer)
        options = _options(fields, client)
    except (TypeError, ValueError) as error:
        raise bad_argument(error) from None
    return prompt, options, stream, usage


def _object(body):
    if len(body) > MAX_BODY:
        raise BadRequest(f"the request must be at most {MAX_BODY} bytes", status=413)
    try:
        fields = json.loads(body)
        json.dumps(fields, ensure_ascii=False).encode()  # half of a pair, "\ud800", has no UTF-8
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise BadRequest(f"the request must be JSON: {error!s:.200}") from None
    if not isinstance(fields, dict):
        raise BadRequest("the request must be a JSON object")
    return fields


def _flag(fields, name):
    if fields.get(name) is not None and type(fields[name]) is not bool:
        raise BadRequest(f"{name} must be true or false, got {fields[name]!r:.60}", name)
    return bool(fields.get(name))


def _prompt(prompt, tokenizer):
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, "prompt").tolist()
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return prompt
    raise TypeError(f"prompt must be one string, or one list of tokens, got {prompt!r:.60}")


def _options(fields, client):
    names = "max_tokens temperature top_k top_p n beams seed".split()
    given = {name: fields[name] for name in names if fields.get(name) is not None}
    given.setdefault("seed", secrets.randbelow(2**31))  # another answer each time
    stop = fields.get("stop") or ()
    stop = [stop] if isinstance(stop, str) else stop
    if stop and not (isinstance(stop, list) and all(isinstance(s, str) for s in stop)):
        raise TypeError(f"stop must be a string, or a list of strings, got {stop!r:.60}")
    user = fields.get("user")
    if user is not None and not (isinstance(user, str) and len(user) <= MAX_USER):
        raise TypeError(f"user must be a string of at most {MAX_USER}, got {user!r:.60}")
    return Options(**given, stop=tuple(stop), client=user or client)


def error_body(message, param=None, kind="invalid_request_error") -> dict:
    """An error, as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def completion(identifier, model, created, choices, usage=None) -> dict:
    """An answer, or a piece of one."""
    body = {
        "id": identifier,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
    }
    return body if usage is None else body | {"usage": usage}


def choice(index, text, reason) -> dict:
    """One of a completion's answers, or a piece of it; `reason` is None until its end."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def usage_of(request) -> dict:
    """Counts of an ended request's tokens."""
    answer = sum(len(answer.tokens) for answer in request.answers)
    return {
        "prompt_tokens": len(request.prompt),
        "completion_tokens": answer,
        "total_tokens": len(request.prompt) + answer,
        "prompt_tokens_details": {"cached_tokens": request.shared},
    }
