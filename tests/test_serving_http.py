"""The web server: completions as OpenAI has them, bad requests, clients that go."""

import argparse
import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from serving_models import (
    CHARACTERS,
    CONFIG,
    LATENT,
    WEIGHTS,
    assert_empty,
    make_engine,
    serving,
    wait_until,
)

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from fa_numba.language_model import model
from fa_numba.language_model.server import Options, background, serve
from fa_numba.language_model.server.model_drafter import ModelDrafter
from fa_numba.language_model.server.ngram_drafter import NGramDrafter
from fa_numba.language_model.text import Characters
from fa_numba.workbook import cli


@pytest.fixture(scope="module")
def engine():
    return make_engine(num_pages=300, max_waiting=1000)


@pytest.fixture(scope="module")
def server(engine):
    with serving(engine) as address:
        yield address
    assert_empty(engine)


@pytest.fixture
def post(server):
    with httpx.Client(base_url=server, timeout=300) as client:  # kernels may be compiled first

        def post(body=None, **fields):
            content = json.dumps(fields) if body is None else body
            return client.post("/v1/completions", content=content)

        yield post


def text_of(prompt, **options):
    """The answer of an engine that serves no other request."""
    engine = make_engine()
    ((answer, *_),) = engine.generate([CHARACTERS.encode(prompt)], Options(**options))
    return answer.text


def events_of(reply):
    lines = [line for line in reply.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


GREEDY = {"prompt": "Hello there", "max_tokens": 20, "temperature": 0}


def test_an_answer(post):
    reply = post(**GREEDY)
    body = reply.json()
    assert reply.status_code == 200 and body["object"] == "text_completion"
    (choice,) = body["choices"]
    assert choice["text"] == text_of("Hello there", max_tokens=20, temperature=0)
    assert choice["finish_reason"] == "length" and choice["index"] == 0
    assert body["usage"]["prompt_tokens"] == 11 and body["usage"]["completion_tokens"] == 20
    assert body["usage"]["total_tokens"] == 31 and body["model"] == "tiny"
    assert post(**GREEDY | {"prompt": CHARACTERS.encode("Hello there").tolist()}).json()[
        "choices"
    ] == [choice]


def test_a_stream_has_the_same_text_in_pieces(post):
    reply = post(**GREEDY, stream=True, stream_options={"include_usage": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    *pieces, counts = events_of(reply)
    texts = [piece["choices"][0]["text"] for piece in pieces]
    assert "".join(texts) == text_of("Hello there", max_tokens=20, temperature=0)
    assert len(texts) == 21, "each token by itself, then the reason"
    assert [p["choices"][0]["finish_reason"] for p in pieces] == [None] * 20 + ["length"]
    assert counts["choices"] == [] and counts["usage"]["completion_tokens"] == 20


def test_several_answers_and_beams(post):
    options = {"prompt": "ab", "max_tokens": 8, "n": 3, "seed": 5}
    choices = post(**options).json()["choices"]
    assert [c["index"] for c in choices] == [0, 1, 2]
    assert len({c["text"] for c in choices}) == 3
    streamed = ["", "", ""]
    for event in events_of(post(**options, stream=True)):
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert streamed == [c["text"] for c in choices]
    best = post(prompt="ab", max_tokens=8, beams=4, n=2).json()["choices"]
    assert len({c["text"] for c in best}) == 2


def test_without_a_seed_answers_differ(post):
    texts = {post(prompt="ab", max_tokens=20).json()["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 3
    texts = {post(prompt="ab", max_tokens=20, seed=3).json()["choices"][0]["text"] for _ in "12"}
    assert len(texts) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(post, stream):
    full = text_of("Hello there", max_tokens=20, temperature=0)
    reply = post(**GREEDY, stop=[full[7:10], "zzzz"], stream=stream)
    if stream:
        choices = [event["choices"][0] for event in events_of(reply)]
        text, reason = "".join(c["text"] for c in choices), choices[-1]["finish_reason"]
    else:
        (choice,) = reply.json()["choices"]
        text, reason = choice["text"], choice["finish_reason"]
    assert text == full[: full.index(full[7:10])] and reason == "stop"


BAD = {
    "no JSON": ("{", None, "JSON"),
    "no object": ("[1]", None, "JSON object"),
    "bytes": (b"\xff\xfe", None, "JSON"),
    "no prompt": ({}, "prompt", "missing"),
    "number": ({"prompt": 3}, "prompt", "one string"),
    "mixed prompts": ({"prompt": ["a", 3]}, "prompt", "a list of these"),
    "prompts": ({"prompt": ["a"] * 300}, "prompt", "at most 256 prompts"),
    "one bad of two": ({"prompt": ["a", "a" * 200]}, "prompt", "context"),
    "empty": ({"prompt": ""}, "prompt", "at least one token"),
    "symbol": ({"prompt": "a€"}, "prompt", "'€'"),
    "token": ({"prompt": [1, 999]}, "prompt", "from 0 to"),
    "long": ({"prompt": "a" * 200}, "prompt", "context"),
    "max_tokens": ({"max_tokens": -1}, "max_tokens", "at least 0"),
    "too many": ({"max_tokens": 1000}, "prompt", "context"),
    "text": ({"max_tokens": "5"}, "max_tokens", "integer"),
    "temperature": ({"temperature": -1}, "temperature", "from 0 to 2"),
    "hot": ({"temperature": "hot"}, "temperature", "number"),
    "nan": ('{"prompt": "a", "top_p": NaN}', "top_p", "from 0 to 1"),
    "top_k": ({"top_k": 100}, "top_k", "at most 32"),
    "n": ({"n": 1000}, "n", "at most 64"),
    "beams": ({"beams": 2, "n": 3}, "n", "at most beams"),
    "stop": ({"stop": 3}, "stop", "strings"),
    "empty stop": ({"stop": [""]}, "stop", "none empty"),
    "stop strings": ({"stop": ["a", 3]}, "stop", "a string, or a list of strings"),
    "stop false": ({"stop": False}, "stop", "a string, or a list of strings"),
    "stream": ({"stream": "yes"}, "stream", "true or false"),
    "stream 1": ({"stream": 1}, "stream", "true or false"),
    "usage": ({"stream_options": {"include_usage": "x"}}, "include_usage", "true or false"),
    "half a pair": ('{"prompt": "a", "\\ud800": 1}', None, "JSON"),
    "half a pair, user": ('{"prompt": "a", "user": "\\ud800"}', None, "JSON"),
    "long name": ({"x" * 10**5: 1}, "x" * 60, "no field"),
    "long number": ('{"prompt": "a", "temperature": ' + "9" * 4000 + "}", "temperature", "..."),
    "logprobs": ({"logprobs": 33}, "logprobs", "at most 32"),
    "logprobs true": ({"logprobs": True}, "logprobs", "integer"),
    "best_of": ({"best_of": 1, "n": 2}, "best_of", "at least n = 2"),
    "best_of true": ({"best_of": True}, "best_of", "integer"),
    "too many to choose from": ({"best_of": 10**30}, "best_of", "best_of and beams must be at"),
    "best of a stream": ({"best_of": 2, "stream": True}, "best_of", "in a stream"),
    "echo": ({"echo": 1}, "echo", "true or false"),
    "penalty": ({"presence_penalty": 1}, "presence_penalty", "not supported"),
    "penalty false": ({"frequency_penalty": False}, "frequency_penalty", "must be 0 or null"),
    "penalty text": ({"frequency_penalty": "0"}, "frequency_penalty", "must be 0 or null"),
    "bias false": ({"logit_bias": False}, "logit_bias", "must be {} or null"),
    "temperature false": ({"temperature": False}, "temperature", "number"),
    "infinite": ('{"prompt": "a", "temperature": 1e999}', "temperature", "from 0 to 2"),
    "minus infinity": ('{"prompt": "a", "top_p": -Infinity}', "top_p", "from 0 to 1"),
    "seed false": ({"seed": False}, "seed", "integer"),
    "token true": ({"prompt": [True]}, "prompt", "one list of tokens"),
    "unknown": ({"mx_tokens": 5}, "mx_tokens", "no field"),
    "seed": ({"seed": 1.5}, "seed", "integer"),
    "user": ({"user": 7}, "user", "string"),
    "long user": ({"user": "a" * 300}, "user", "at most 256"),
    "huge token": ({"prompt": [10**40]}, "prompt", "int64"),
    "float token": ({"prompt": [1.5]}, "prompt", "one list of tokens"),
    "huge number": ('{"prompt": "a", "max_tokens": 1' + "0" * 5000 + "}", None, "JSON"),
    "longest number": (f'{{"prompt": "a", "max_tokens": {"9" * 4300}}}', "prompt", "context"),
    "deep": ('{"prompt": ' + "[" * 10**5, None, "JSON"),
    "stream_options": ({"stream_options": 0}, "stream_options", "object"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_gets_a_4xx_that_names_the_field(post, name):
    body, param, words = BAD[name]
    reply = post(**{"prompt": "a"} | body) if body and isinstance(body, dict) else (
        post(json.dumps(body)) if isinstance(body, dict) else post(body)
    )  # fmt: skip
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert words in error["message"] and error["type"] == "invalid_request_error"
    assert len(error["message"]) <= 404, "a request is not echoed at any length"
    assert error["param"] == param


def test_other_refusals(post, server):
    assert post(prompt="a", model="gpt-5").status_code == 404
    assert post(b'{"prompt": "' + b"a" * 2**20 + b'"}').status_code == 413
    get = httpx.get(f"{server}/v1/completions")
    assert get.status_code == 405 and "GET" in get.json()["error"]["message"]
    assert httpx.get(f"{server}/nothing").json()["error"]["message"] == "there is no /nothing"
    assert len(httpx.get(f"{server}/{'a' * 9999}").json()["error"]["message"]) <= 404
    assert httpx.get(f"{server}/v1/models").json()["data"][0]["id"] == "tiny"


def whole_pass(tokens):
    """Log-probabilities of all tokens after each one, in float64, by one pass."""
    x = model.forward(WEIGHTS, CONFIG, np.array([tokens], np.int32))[0].astype(np.float64)
    return x - np.logaddexp.reduce(x, axis=1, keepdims=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("new", [0, 12])
def test_logprobs_equal_those_of_a_whole_pass(post, new, echo, stream):
    texts, options = ["Hello there", "a", "Hello"], {"max_tokens": new, "n": 2, "seed": 4}
    reply = post(prompt=texts, logprobs=3, echo=echo, stream=stream, **options)
    if stream:
        choices = [{"text": "", "logprobs": None} for _ in range(6)]
        for event in events_of(reply):
            (piece,) = event["choices"]
            choices[piece["index"]]["text"] += piece["text"]
            choices[piece["index"]]["logprobs"] = piece["logprobs"]
    else:
        choices = reply.json()["choices"]
        assert [c["index"] for c in choices] == list(range(6))
        assert reply.json()["usage"]["completion_tokens"] == 6 * new
    for prompt, pair in zip(texts, (choices[:2], choices[2:4], choices[4:]), strict=True):
        for c in pair:
            text, found = c["text"] if echo else prompt + c["text"], c["logprobs"]
            assert text.startswith(prompt) and len(text) == len(prompt) + new
            tokens = CHARACTERS.encode(text)
            want = np.vstack([np.full(len(CHARACTERS), np.nan), whole_pass(tokens)[:-1]])
            start = 0 if echo else len(prompt)
            assert found["tokens"] == list(c["text"])
            assert found["text_offset"] == list(range(len(c["text"])))
            for i, token in enumerate(tokens[start:]):
                row, top = want[start + i], (found["top_logprobs"] or [None])[i]
                if start + i == 0:
                    assert found["token_logprobs"][i] is None and top is None
                    continue
                assert found["token_logprobs"][i] == pytest.approx(row[token], rel=1e-12)
                best = {*np.argsort(-row)[:3].tolist(), int(token)}
                assert top == pytest.approx(
                    {CHARACTERS.symbols[t]: row[t] for t in best}, rel=1e-12
                )


def test_the_best_of_several_answers_is_sent(post):
    options = {"prompt": "ab", "max_tokens": 8, "seed": 5}
    every = post(**options, n=5, logprobs=0).json()["choices"]
    best = max(every, key=lambda c: sum(c["logprobs"]["token_logprobs"]))
    (one,) = post(**options, best_of=5).json()["choices"]
    assert one == best | {"index": 0, "logprobs": None}


def test_tokens_from_a_stop_string_on_have_no_logprobs(post):
    full = text_of("Hello there", max_tokens=20, temperature=0)
    (choice,) = post(**GREEDY, stop=full[7:10], logprobs=1).json()["choices"]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_a_negative_seed_is_a_seed(post):
    options = {"prompt": "ab", "max_tokens": 20}
    texts = {post(**options, seed=s).json()["choices"][0]["text"] for s in (-7, -7, -8)}
    assert len(texts) == 2


CHAT = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_the_completion_of_its_template(server, stream):
    want = text_of("system\nBe kind\nuser\nHello\nassistant\n", max_tokens=9, temperature=0)
    body = {"messages": CHAT, "max_completion_tokens": 9, "temperature": 0, "stream": stream}
    reply = httpx.post(f"{server}/v1/chat/completions", json=body, timeout=60)
    if stream:
        pieces = [event["choices"][0]["delta"]["content"] for event in events_of(reply)]
        assert "".join(pieces) == want and len(pieces) == 10
    else:
        body = reply.json()
        (choice,) = body["choices"]
        assert choice["message"] == {"role": "assistant", "content": want}
        assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("messages", [], "at least one"),
        ("messages", "hello", "a list"),
        ("messages", [{"role": "robot", "content": "a"}], r"messages[0] must have a role"),
        ("messages", [{"role": "user"}], "content of text"),
        ("messages", [{"role": "user", "content": "€"}], "'€'"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "content of text"),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}], "content of text"),
        ("messages", CHAT * 9, "messages and max_tokens must be at most 128 tokens"),
        ("max_completion_tokens", "5", "max_completion_tokens must be an integer"),
        ("top_logprobs", 33, "top_logprobs must be at most 32"),
    ],
)
def test_bad_chats_name_their_fields(server, name, value, words):
    body = {"messages": CHAT, "logprobs": True, name: value}
    reply = httpx.post(f"{server}/v1/chat/completions", json=body)
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == name and words in error["message"]


def test_identifiers_do_not_come_again_after_a_restart():
    found = set()
    for _ in range(2):
        with serving(make_engine()) as address:
            reply = httpx.post(f"{address}/v1/completions", json=GREEDY, timeout=60)
            found.add(reply.json()["id"])
    assert len(found) == 2


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"host": "evil.example:8123"}, 400),
        ({"host": "127.0.0.1.evil.example"}, 400),
        ({"host": "localhost:99"}, 200),
        ({"host": "[::1]:99"}, 200),
        ({"host": "localhost:99", "origin": "http://localhost:99"}, 200),
        ({"host": "localhost:99", "origin": "http://evil.example"}, 403),
        ({"host": "localhost:99", "origin": "null"}, 403),
        ({"host": "localhost:99", "origin": "http://["}, 403),  # no address
    ],
)
def test_pages_of_others_are_refused(server, headers, status):
    reply = httpx.get(f"{server}/state", headers=headers)
    assert reply.status_code == status
    assert status == 200 or "must be" in reply.json()["error"]["message"]
    body = json.dumps(GREEDY)
    reply = httpx.post(f"{server}/v1/completions", content=body, headers=headers, timeout=60)
    assert reply.status_code == status


def test_names_of_a_server_on_loopback_and_of_another():
    loopback = ("localhost",)
    assert serve._names(loopback, "My.Name", "127.0.0.1") == ("localhost", "my.name")
    assert serve._names(loopback, "::1", "::1") == ("localhost", "[::1]")
    assert serve._names(loopback, "0.0.0.0", "0.0.0.0") == ("*",)


def test_keys_are_needed_and_are_the_clients():
    engine = make_engine()
    with serving(engine, keys=("one", "two")) as address:
        for given in (None, "Bearer", "Bearer three", "Basic one", "Bearer ön"):
            headers = {} if given is None else {"authorization": given.encode("latin-1")}
            for path in ("/v1/models", "/state"):
                reply = httpx.get(address + path, headers=headers)
                assert reply.status_code == 401 and "Bearer" in reply.json()["error"]["message"]
        assert httpx.get(address).status_code == 200, "the page itself"
        for key in ("one", "two"):
            headers, body = {"authorization": f"Bearer {key}"}, GREEDY | {"user": "another"}
            reply = httpx.post(f"{address}/v1/completions", json=body, headers=headers, timeout=60)
            assert reply.status_code == 200
        assert set(engine.schedule.queue.served) == {"key 1", "key 2"}, "not the user named"


def test_keys_come_from_options_or_the_environment(monkeypatch):
    monkeypatch.setenv(serve.KEYS, "one,two")
    assert serve._keys(None) == ["one", "two"] and serve._keys(["three"]) == ["three"]


def test_the_client_of_openai(server):
    openai = pytest.importorskip("openai", reason="the client of OpenAI is not installed")
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="any")
    assert client.models.retrieve("tiny").id == client.models.list().data[0].id == "tiny"
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")
    given = {"model": "tiny", "max_tokens": 6, "temperature": 0}
    want = [text_of(prompt, max_tokens=6, temperature=0) for prompt in ("ab", "Hello")]
    reply = client.completions.create(prompt=["ab", "Hello"], logprobs=2, **given)
    assert [choice.text for choice in reply.choices] == want
    assert [len(choice.logprobs.token_logprobs) for choice in reply.choices] == [6, 6]
    tokens = CHARACTERS.encode("ab").tolist()
    reply = client.completions.create(prompt=[tokens], echo=True, best_of=2, seed=-1, **given)
    assert reply.choices[0].text == "ab" + want[0]
    pieces = client.completions.create(prompt="ab", stream=True, **given)
    assert "".join(piece.choices[0].text for piece in pieces) == want[0]
    reply = client.chat.completions.create(
        messages=CHAT, logprobs=True, top_logprobs=2, seed=3, **given
    )
    (choice,) = reply.choices
    content = choice.logprobs.content
    assert "".join(row.token for row in content) == choice.message.content
    assert all(row.logprob == max(top.logprob for top in row.top_logprobs) for row in content)


def test_lm_eval_measures_the_model(server):
    models = pytest.importorskip(
        "lm_eval.models.openai_completions", reason="lm-eval is not installed"
    )
    pytest.importorskip("aiohttp", reason="lm-eval[api] is not installed")
    from lm_eval.api.instance import Instance

    harness = models.LocalCompletionsAPI(
        base_url=f"{server}/v1/completions",
        model="tiny",
        tokenizer_backend="none",
        batch_size=2,
        max_length=CONFIG.context - 1,
    )
    # The model's own characters as the tokenizer: others would have to be downloaded.
    harness.tokenizer, harness.tokenized_requests = CHARACTERS, True
    harness.tok_encode = lambda text, **_: CHARACTERS.encode(text).tolist()
    greedy = text_of("Hello", max_tokens=4, temperature=0)
    pairs = [("Hello", " there"), ("ab", "c"), ("Hello", greedy)]
    found = harness.loglikelihood(
        [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    )
    for (context, text), (total, is_greedy) in zip(pairs, found, strict=True):
        tokens, start = CHARACTERS.encode(context + text), len(context)
        rows = whole_pass(tokens)[start - 1 : -1]
        assert total == pytest.approx(rows[np.arange(len(text)), tokens[start:]].sum(), rel=1e-9)
        assert is_greedy == bool((rows.argmax(1) == tokens[start:]).all())
    assert [is_greedy for _, is_greedy in found][-1]


def test_bad_requests_harm_no_other(server):
    """Between answers come bad requests, and connections that break off."""

    async def run():
        async with httpx.AsyncClient(base_url=server, timeout=60) as client:
            bodies = []
            for i in range(60):
                good = json.dumps(GREEDY | {"prompt": f"{chr(97 + i % 26)}bc"})
                bodies.append(good if i % 3 == 0 else "{" if i % 3 == 1 else '{"prompt": 5}')
            send = (client.post("/v1/completions", content=body) for body in bodies)
            return await asyncio.gather(*send)

    for i, reply in enumerate(asyncio.run(run())):
        assert reply.status_code == (200 if i % 3 == 0 else 400)
        if i % 30 == 0:
            want = text_of(f"{chr(97 + i % 26)}bc", max_tokens=20, temperature=0)
            assert reply.json()["choices"][0]["text"] == want


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_frees_its_pages(engine, server, post, stream, monkeypatch):
    """The engine waits in its first step until the server has noticed that the client is gone."""
    post(**GREEDY)  # compiles, in a process that has not
    begun, gone, run = threading.Event(), threading.Event(), engine.model.run
    cancel = background.Background.cancel

    def held(*given):
        begun.set()
        assert gone.wait(20)
        return run(*given)

    def noticed(*given):
        cancel(*given)
        gone.set()

    monkeypatch.setattr(engine.model, "run", held)
    monkeypatch.setattr(background.Background, "cancel", noticed)
    before = httpx.get(f"{server}/state").json()["cancelled"]
    body = json.dumps({"prompt": "abc", "max_tokens": 120, "n": 16, "stream": stream}).encode()
    host, port = server.removeprefix("http://").split(":")
    for _ in range(3):
        begun.clear()
        gone.clear()
        with socket.create_connection((host, int(port))) as connection:
            head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            head += f"content-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            assert begun.wait(20) and engine.schedule.pool.num_free < 300

    def all_gone():
        state = httpx.get(f"{server}/state").json()
        return state["cancelled"] == before + 3 and not state["used_pages"]

    wait_until(all_gone)


def test_the_state_and_the_page(server, post):
    post(**GREEDY)
    page = httpx.get(server)
    assert page.status_code == 200 and "<canvas" in page.text
    assert "http://" not in page.text and "https://" not in page.text, "all of it is here"
    wait_until(lambda: httpx.get(f"{server}/state").json()["num_running"] == 0)
    state = httpx.get(f"{server}/state").json()
    assert set(state["pages"]) <= {-1, -2} and len(state["pages"]) == 300
    assert state["tokens_made"] > 0 and state["waiting"] == []


def test_a_full_queue_refuses_with_429():
    text_of("a", max_tokens=2)  # compiles, in a process that has not
    engine, refused = make_engine(max_waiting=2, max_branches=1, max_rows=8), threading.Event()
    run = engine.model.run

    def held(*given):
        assert refused.wait(20)
        return run(*given)

    async def ask(client):
        reply = await client.post("/v1/completions", json=GREEDY)
        if reply.status_code == 429:
            refused.set()
        return reply

    async def ask_all(address):
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            return await asyncio.gather(*(ask(client) for _ in range(30)))

    engine.model.run = held
    with serving(engine) as address:
        replies = asyncio.run(ask_all(address))
    codes = {reply.status_code for reply in replies}
    assert codes == {200, 429}
    refused = next(reply for reply in replies if reply.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert_empty(engine)


def test_more_prompts_than_can_wait_are_no_reason_to_ask_again():
    with serving(make_engine(max_waiting=2)) as address:
        for number, status in ((2, 200), (3, 400)):
            body = {"prompt": ["a"] * number, "max_tokens": 1}
            reply = httpx.post(f"{address}/v1/completions", json=body, timeout=60)
            assert reply.status_code == status
    error = reply.json()["error"]
    assert error["param"] == "prompt"
    assert "at most 2 prompts, which --queue of the server allows, got 3" in error["message"]


def test_a_server_that_stops_says_so_with_503(monkeypatch):
    begun, start = [], background.Background.start
    monkeypatch.setattr(
        background.Background, "start", lambda self: begun.append(self) or start(self)
    )
    with serving(make_engine()) as address:
        begun[0].stop_soon()
        reply = httpx.post(f"{address}/v1/completions", json=GREEDY)
    assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
    assert reply.json()["error"]["type"] == "server_error"


def test_a_step_that_fails_ends_its_requests_and_no_more():
    engine = make_engine()
    run = engine.model.run

    def fail(*given):
        engine.model.run = run
        raise RuntimeError("the model failed")

    engine.model.run = fail
    with serving(engine) as address:
        reply = httpx.post(f"{address}/v1/completions", json=GREEDY)
        assert reply.status_code == 500 and reply.json()["error"]["type"] == "server_error"
        assert "retry-after" not in reply.headers
        reply = httpx.post(f"{address}/v1/completions", json=GREEDY)
        want = text_of("Hello there", max_tokens=20, temperature=0)
        assert reply.json()["choices"][0]["text"] == want
    assert_empty(engine)


@pytest.mark.parametrize(
    "drafter, width, number",
    [
        (NGramDrafter, 1, 60),
        (ModelDrafter, 1, 60),
        # A tree is a mask: half a minute of compilation.
        pytest.param(NGramDrafter, 2, 60, marks=pytest.mark.thorough),
        pytest.param(ModelDrafter, 2, 60, marks=pytest.mark.thorough),
        pytest.param(NGramDrafter, 1, 300, marks=pytest.mark.thorough),
    ],
)
def test_requests_at_once_with_all_switches_on(drafter, width, number):
    """Pages of 8 bits, prefixes, a cascade and guesses; each sixth client goes in the middle."""
    sizes = {"page_size": 4, "num_pages": 150, "host_pages": 40}
    small = () if drafter is NGramDrafter else (WEIGHTS, CONFIG)
    engine = make_engine(kv_dtype="fp8", drafter=drafter(*small, width=width), **sizes)
    alone = make_engine(kv_dtype="fp8", share_prefixes=False)
    stem, rng = "the quick brown fox, the quick brown ", np.random.default_rng(0)
    prompts = [stem + "abcdefgh"[int(i)] * 3 + " a b"[: i % 4] for i in rng.integers(0, 8, number)]
    asked = {"max_tokens": 24, "temperature": 0}
    tokens = [CHARACTERS.encode(prompt).tolist() for prompt in sorted(set(prompts))]
    want = alone.generate(tokens, Options(**asked))
    want = {p: a.text for p, (a,) in zip(sorted(set(prompts)), want, strict=True)}
    planned, cascade_of = [], engine.model.cascade_of
    engine.model.cascade_of = lambda plan: planned.append(cascade_of(plan)) or planned[-1]

    async def ask(client, i):
        body = {"prompt": prompts[i], "stream": True, **asked}
        text = ""
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                if i % 6 == 5 and text:
                    return None
        return text

    async def ask_all(address):
        limits = httpx.Limits(max_connections=number)
        async with httpx.AsyncClient(base_url=address, timeout=300, limits=limits) as client:
            return await asyncio.gather(*(ask(client, i) for i in range(number)))

    with serving(engine) as address:
        texts = asyncio.run(ask_all(address))
        wait_until(lambda: not engine.busy)
    assert [t for i, t in enumerate(texts) if i % 6 != 5] == [
        want[p] for i, p in enumerate(prompts) if i % 6 != 5
    ]
    assert engine.cancelled and engine.kept > 50 and engine.schedule.shared and any(planned)
    assert_empty(engine)


HALF_A_REQUEST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"


def test_the_command_serves_until_it_is_interrupted():
    command = [sys.executable, "-m", "fa_numba.workbook.cli", "serve", "--untrained", "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as server:
        try:
            address = next(m for line in server.stdout if (m := re.search(r"http://\S+", line)))
            body = {"prompt": "The ", "max_tokens": 5, "model": "untrained"}
            reply = httpx.post(f"{address[0]}/v1/completions", json=body, timeout=60)
            assert len(reply.json()["choices"][0]["text"]) == 5
            more = body | {"max_tokens": 240, "n": 30, "stream": True}
            half = socket.create_connection(("127.0.0.1", address[0].rpartition(":")[2]))
            with half, httpx.stream("POST", f"{address[0]}/v1/completions", json=more) as reply:
                half.sendall(HALF_A_REQUEST)
                lines = reply.iter_lines()
                next(lines)
                server.send_signal(signal.SIGINT)
                assert "the server is stopping" in "".join(lines)
                assert server.wait(timeout=30) == 130
            assert server.stderr.read() == "fa-numba: stopped\n", "the half is no error"
        finally:
            server.kill()


@pytest.mark.parametrize(
    "options, words",
    [
        (["--model", "none.npz"], "there is no file none.npz"),
        (["--float16"], "--float16 needs --gpu"),
        (["--gpu", "--kv-dtype", "fp8"], "--kv-dtype fp8 needs --float16 with --gpu"),
        (["--untrained", "--pages", "0"], "--pages must be at least 1, got 0"),
        (["--untrained", "--host-pages", "-1"], "--host-pages must be at least 0, got -1"),
        (
            ["--untrained", "--host-pages", "1000000000"],
            "--host-pages * --page-size must be at most 2**31",
        ),
        (["--untrained", "--rows", "5"], "--rows must be more than --batch = 64"),
        (["--untrained", "--blas-threads", "0"], "--blas-threads must be at least 1, got 0"),
        (["--untrained", "--draft-tokens", "64"], "--draft-tokens must be at most 63, got 64"),
        (["--untrained", "--draft-width", "0"], "--draft-width must be at least 1, got 0"),
        (["--untrained", "--draft", "model"], "--draft model needs a model that has learned"),
        (["--untrained", "--topk-pages", "4"], "--topk-pages must be 0 unless --draft is none"),
        (["--port", "65536"], "--port must be from 0 to 65535, got 65536"),
        (["--model", "."], ". cannot be read: Is a directory"),
    ],
)
def test_the_command_refuses_bad_options(capsys, options, words):
    assert cli.main(["serve", *options]) == 2
    assert words in capsys.readouterr().err


def test_the_small_model_of_the_command_has_learned_the_same_text(monkeypatch, tmp_path):
    """It is read from its file, and one with other characters or none is refused."""
    options = ["--draft", "model", "--draft-model", "small.npz", "--draft-tokens", "6"]
    parser = argparse.ArgumentParser()
    serve.add_options(parser)
    options = parser.parse_args(options)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(serve.BadRequest, match="no file small.npz.* --layers 1 --out small.npz"):
        serve._drafter(options, CHARACTERS)
    stored = SimpleNamespace(weights=lambda xp: WEIGHTS, config=CONFIG, characters=CHARACTERS)
    monkeypatch.setattr(serve, "load_model", lambda file: stored)
    drafter = serve._drafter(options, CHARACTERS)
    assert isinstance(drafter, ModelDrafter) and (drafter.tokens, drafter.width) == (6, 1)
    with pytest.raises(serve.BadRequest, match="--draft-model must have learned the text of"):
        serve._drafter(options, Characters.of("other letters"))
    options.batch = 0
    with pytest.raises(ValueError, match="max_branches must be at least 1, got 0"):
        serve._drafter(options, CHARACTERS)


@pytest.mark.parametrize("option", [["--topk-pages", "4"], ["--kv-dtype", "fp8"]])
def test_the_command_refuses_latents_where_it_cannot_serve_them(monkeypatch, option):
    stored = SimpleNamespace(weights=lambda xp: WEIGHTS, config=LATENT, characters=CHARACTERS)
    monkeypatch.setattr(serve, "load_model", lambda file: stored)
    monkeypatch.setattr(serve, "module_for", lambda gpu: np)
    parser = argparse.ArgumentParser()
    serve.add_options(parser)
    words = (
        " ".join(option[: 2 if "fp8" in option else 1])
        + " needs a model without latents, got one of --latent-dim 24"
    )
    with pytest.raises(serve.BadRequest, match=words):
        serve._model(parser.parse_args(option))


def test_a_second_server_says_that_the_port_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--untrained", "--port", str(port)]) == 2
    said = capsys.readouterr()
    assert f"got 127.0.0.1:{port}: another program listens there; --port 0" in said.err
    assert not said.out, "nothing was compiled"
