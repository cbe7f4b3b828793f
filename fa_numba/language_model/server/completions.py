"""Requests and answers in the JSON of OpenAI's completions, and of its chat completions.

https://platform.openai.com/docs/api-reference/completions explains the fields; `top_k` and
`beams` are ours. A chat becomes a prompt by `chat_prompt`, and its answer another JSON. A field
that would change the answer and is not supported is refused: an answer that ignores it would be
taken for one that does not.
"""

import json
import re
import secrets
from dataclasses import replace
from typing import NamedTuple

from fa_numba.language_model.server.options import Options
from fa_numba.language_model.server.text_stream import INCOMPLETE, TextStream

MAX_BODY = 2**20  # bytes of a request
MAX_USER = 256  # characters
MAX_MESSAGE = 400  # characters of an error, which may quote the request
MAX_PROMPTS = 256  # of a request
BOTH = (
    "model max_tokens temperature top_k top_p n beams stop seed user stream stream_options logprobs"
).split()
FIELDS = [*BOTH, "prompt", "echo", "best_of"]
CHAT_FIELDS = [*BOTH, "messages", "max_completion_tokens", "top_logprobs"]
HARMLESS = {  # fields of other servers, at the values that change nothing
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tools": (None, []),
}
ROLES = "system", "developer", "user", "assistant"


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
        super().__init__(message)
        self.param, self.status = param, status


class Call(NamedTuple):
    """A request."""

    prompts: list
    options: Options  # of each prompt
    keep: int  # answers to each prompt that are sent: the best of `options.n`
    echo: bool  # an answer begins with its prompt
    stream: bool  # whether to send the answer in pieces, and its counts after the last one
    usage: bool
    chat: bool
    logprobs: bool  # the answer has log-probabilities; `best_of` needs them too
    names: dict  # of the fields that the request has under another name than `Options`


def bad_argument(error, names) -> BadRequest:
    """The refusal for an error of `checks`, whose message begins with names of arguments."""
    about, must, said = str(error).partition(" must ")
    about = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), about)
    name = re.match(r"\w*", about)[0]
    return BadRequest(about + must + said, name if name in FIELDS + CHAT_FIELDS else None)


def parse(
    body: bytes, tokenizer, model: str, client: str, *, chat=False, known=False, queue=MAX_PROMPTS
) -> Call:
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
    chat : bool, default=False
    known : bool, default=False
        `client` is sure, by its key: what the request says does not count.
    queue : int, default=MAX_PROMPTS
        Requests that can wait. More prompts would be refused however often they were sent.

    Raises
    ------
    BadRequest
    """
    fields, there_are = _object(body), CHAT_FIELDS if chat else FIELDS
    for name, value in fields.items():
        if name in HARMLESS:
            if value not in HARMLESS[name] or type(value) is bool:  # False is equal to 0
                must = json.dumps(HARMLESS[name][1])
                said = f"{name} is not supported here: it must be {must} or null, got {value!r:.60}"
                raise BadRequest(said, name)
        elif name not in there_are:
            said = f"there is no field {name!r:.60}; there are {', '.join(there_are)}"
            raise BadRequest(said, name[:60])
    if fields.get("model", model) != model:
        raise BadRequest(f"model must be {model!r}, got {fields['model']!r:.60}", "model", 404)
    text = "messages" if chat else "prompt"
    if text not in fields:
        raise BadRequest(f"{text} is missing", text)
    stream = _flag(fields, "stream")
    stream_options = fields.get("stream_options")
    stream_options = {} if stream_options is None else stream_options
    if not isinstance(stream_options, dict) or stream_options.keys() - {"include_usage"}:
        raise BadRequest("stream_options must be an object with include_usage", "stream_options")
    usage = _flag(stream_options, "include_usage")
    echo, names = _flag(fields, "echo"), {}
    try:
        if chat:
            names = _chat_fields(fields)
            prompts = [tokenizer.encode(chat_prompt(fields["messages"]), "messages").tolist()]
        else:
            prompts = _prompts(fields["prompt"], tokenizer, queue)
        options = _options(fields, client, known)
        keep, options = _best_of(fields.get("best_of"), options)
    except (TypeError, ValueError) as error:
        raise bad_argument(error, names) from None
    if stream and keep < options.n:
        raise BadRequest("best_of must be n in a stream: the best is known at the end", "best_of")
    wanted = fields.get("logprobs") is not None
    if keep < options.n:
        names = {"n": "best_of"}
    return Call(prompts, options, keep, echo, stream, usage, chat, wanted, names)


def chat_prompt(messages) -> str:
    """The prompt of a chat: the role of each message in a line, then its text and a line feed.

    At the end there is a line with the role of the answer, "assistant". A model that was trained on
    a plain text has no template of its own; this one has letters and line feeds alone.
    """
    if not isinstance(messages, list) or not messages:
        raise TypeError(f"messages must be a list of at least one message, got {messages!r:.60}")
    lines = []
    for i, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        text = message.get("content") if isinstance(message, dict) else None
        if isinstance(text, list) and all(
            isinstance(part, dict)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
            for part in text
        ):
            text = "".join(part["text"] for part in text)
        if role not in ROLES or not isinstance(text, str):
            raise TypeError(
                f"messages[{i}] must have a role, one of {', '.join(ROLES)}, and a content of "
                f"text, got {message!r:.60}"
            )
        lines += role, text
    return "\n".join([*lines, "assistant\n"])


def _chat_fields(fields):
    """Change the fields that a chat has under another name to those of a completion.

    Returns
    -------
    dict
        Their names in a chat.
    """
    names = {"prompt": "messages", "logprobs": "top_logprobs"}
    if fields.get("max_completion_tokens") is not None:
        fields["max_tokens"] = fields["max_completion_tokens"]
        names["max_tokens"] = "max_completion_tokens"
    wanted, number = _flag(fields, "logprobs"), fields.get("top_logprobs")
    if number is not None and not wanted:
        raise ValueError("top_logprobs must come with logprobs, which is true")
    fields["logprobs"] = (0 if number is None else number) if wanted else None
    return names


def _best_of(number, options):
    """How many answers to keep, and the options that make those to choose from."""
    number = options.n if number is None else number
    if type(number) is not int or number < options.n or (options.beams and number > options.n):
        raise ValueError(
            f"best_of must be an integer, at least n = {options.n}, and without beams, got "
            f"{number!r:.60}"
        )
    if number == options.n:
        return number, options
    return options.n, replace(options, n=number, logprobs=options.logprobs or 0)


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


def _prompts(prompt, tokenizer, queue):
    one = not isinstance(prompt, list) or all(type(token) is int for token in prompt)
    prompts = [prompt] if one else prompt
    most = min(queue, MAX_PROMPTS)
    if len(prompts) > most:
        which = ", which --queue of the server allows" if queue < MAX_PROMPTS else ""
        raise ValueError(f"prompt must be at most {most} prompts{which}, got {len(prompts)}")
    return [_prompt(x, tokenizer) for x in prompts]


def _prompt(prompt, tokenizer):
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, "prompt").tolist()
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return prompt
    raise TypeError(
        f"prompt must be one string, or one list of tokens, or a list of these, got {prompt!r:.60}"
    )


def _options(fields, client, known):
    names = "max_tokens temperature top_k top_p n beams seed logprobs".split()
    given = {name: fields[name] for name in names if fields.get(name) is not None}
    if type(given.get("seed")) is int:
        given["seed"] %= 2**64  # OpenAI's may be negative
    given.setdefault("seed", secrets.randbelow(2**31))  # another answer each time
    stop = fields.get("stop")
    stop = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not (isinstance(stop, list) and all(isinstance(s, str) for s in stop)):
        raise TypeError(f"stop must be a string, or a list of strings, got {stop!r:.60}")
    user = fields.get("user")
    if user is not None and not (isinstance(user, str) and len(user) <= MAX_USER):
        raise TypeError(f"user must be a string of at most {MAX_USER}, got {user!r:.60}")
    return Options(**given, stop=tuple(stop), client=client if known else user or client)


def error_body(message, param=None, kind="invalid_request_error") -> dict:
    """An error, as OpenAI's clients read it."""
    message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ..."
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def completion(kind, identifier, model, created, choices, usage=None) -> dict:
    """An answer, or a piece of one."""
    body = {
        "id": identifier,
        "object": kind,
        "created": created,
        "model": model,
        "choices": choices,
    }
    return body if usage is None else body | {"usage": usage}


def choice(call, index, text, reason, logprobs=None) -> dict:
    """One of a request's answers, or a piece of it; `reason` is None until its end."""
    body = {"index": index, "logprobs": logprobs, "finish_reason": reason}
    if not call.chat:
        return body | {"text": text}
    return body | {"delta" if call.stream else "message": {"role": "assistant", "content": text}}


def choices_of(call, requests, decode) -> list:
    """The choices of ended requests, those of the first prompt first."""
    choices = []
    for request in requests:
        answers = request.answers
        if call.keep < len(answers):
            answers = sorted(answers, key=lambda answer: -_mean_logprob(request, answer))
        for answer in answers[: call.keep]:
            text = (decode(request.prompt) if call.echo else "") + answer.text
            found = logprobs_of(call, request, answer, decode)
            choices.append(choice(call, len(choices), text, answer.reason, found))
    return choices


def _mean_logprob(request, answer):
    of_answer = answer.scores.logprobs[len(request.prompt) :]
    return sum(of_answer) / max(1, len(of_answer))


def logprobs_of(call, request, answer, decode):
    """The log-probabilities of an answer as OpenAI has them, or None.

    A token whose text is not a whole character is named by its number. Of an answer that a stop
    string ended, the tokens from that string on are left out.
    """
    if answer.scores is None or not call.logprobs:
        return None
    start = 0 if call.echo else len(request.prompt)
    rows = []
    stream, end = TextStream(decode), float("inf")
    prefix = len(decode(request.prompt)) if call.echo else 0
    if answer.reason == "stop":
        end = prefix + len(answer.text)
    tokens = [*request.prompt, *answer.tokens]
    for token, logprob, likeliest in list(zip(tokens, *answer.scores, strict=True))[start:]:
        offset = len(stream.text)
        if offset >= end:
            break
        stream.feed(token)
        top = {_name(t, decode): x for t, x in likeliest or ()}
        rows.append((_name(token, decode), logprob, top, offset))
    if call.chat:
        return {"content": [_chat_row(*row) for row in rows]}
    names, logprobs, tops, offsets = map(list, zip(*rows, strict=True)) if rows else ([],) * 4
    for i, (name, logprob) in enumerate(zip(names, logprobs, strict=True)):
        tops[i] = None if logprob is None else tops[i] | {name: logprob}
    if not call.options.logprobs:
        tops = None
    return {
        "tokens": names,
        "token_logprobs": logprobs,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _name(token, decode):
    text = decode([token])
    return f"token_id:{token}" if INCOMPLETE in text else text


def _chat_row(name, logprob, top, offset):
    likeliest = [{"token": t, "logprob": x, "bytes": list(t.encode())} for t, x in top.items()]
    row = {"token": name, "logprob": logprob, "bytes": list(name.encode())}
    return row | {"top_logprobs": likeliest}


def usage_of(requests) -> dict:
    """Counts of ended requests' tokens."""
    prompt = sum(len(request.prompt) for request in requests)
    answer = sum(len(answer.tokens) for request in requests for answer in request.answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": sum(r.shared for r in requests)},
    }
