"""The command `fa-numba serve`: a model behind a web server."""

import argparse
import errno
import ipaddress
import logging
import os
import re
import socket
from pathlib import Path

import numpy as np

from fa_numba import checks
from fa_numba.checks import serving
from fa_numba.language_model import text
from fa_numba.language_model.command import MODEL, BadRequest, NoModel, load_model, module_for
from fa_numba.language_model.model import Config, init_weights
from fa_numba.language_model.server.draft_tree import DraftTree
from fa_numba.language_model.server.engine import Engine
from fa_numba.language_model.server.model_drafter import ModelDrafter
from fa_numba.language_model.server.ngram_drafter import NGramDrafter
from fa_numba.language_model.server.options import Options

SECONDS_TO_END = 3  # for answers that are under way when the server is interrupted
KEYS = "FA_NUMBA_API_KEYS"  # the environment variable
DRAFTS = "ngram", "model", "none"
MANY_TOKENS = 64  # of a prompt: more than are decoded as an answer's are
OF_ENGINE = {  # options of the command, by the arguments of the engine that they become
    "num_pages": "--pages",
    "page_size": "--page-size",
    "host_pages": "--host-pages",
    "max_rows": "--rows",
    "max_branches": "--batch",
    "max_waiting": "--queue",
    "topk_pages": "--topk-pages",
    "kv_dtype": "--kv-dtype",
}
OPTIONS = {"tokens": "--draft-tokens", "width": "--draft-width", "drafter": "--draft", **OF_ENGINE}

EPILOG = """\
A completion, streamed:

  curl -N localhost:8000/v1/completions -d '{"prompt": "The ", "max_tokens": 40, "stream": true}'

OpenAI's clients work too: base_url="http://localhost:8000/v1", and any api_key, or one of those
that --api-key names. In a browser
http://localhost:8000 shows pages, queue and tokens per second.
"""


def add_options(command: argparse.ArgumentParser):
    """Add the command's options."""
    sizes = {
        "--pages": (512, "pages of keys and values"),
        "--page-size": (16, "tokens of a page"),
        "--host-pages": (0, "pages in host memory to swap to; 0: recompute instead"),
        "--topk-pages": (0, "pages that a token of an answer attends to; 0: all"),
        "--batch": (64, "answers computed at a time, at most"),
        "--rows": (256, "tokens computed in a step, at most: one for each answer, and prompts"),
        "--draft-tokens": (8, "tokens guessed for an answer in a step, at most 63"),
        "--draft-width": (1, "guesses of one token; more make a tree of the chain"),
        "--queue": (2048, "requests that wait, at most; others get status 429"),
        "--blas-threads": (1, "threads of a product of matrices; more pay off for large models"),
    }
    command.add_argument(
        "--model", default=MODEL, metavar="FILE", help=f"file that fa-numba train wrote ({MODEL})"
    )
    command.add_argument(
        "--untrained", action="store_true", help="random weights instead, to try the server"
    )
    command.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    command.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help="answer only who has a key; once for each. Other users of the machine see options, "
        f"so {KEYS} may have them, separated by commas",
    )
    command.add_argument("--port", type=int, default=8000, help="0: any free one (%(default)s)")
    command.add_argument("--gpu", action="store_true", help="weights and pages on a GPU, by CuPy")
    command.add_argument(
        "--float16", action="store_true", help="weights and pages in float16; needs --gpu"
    )
    command.add_argument(
        "--kv-dtype",
        choices=serving.KV_DTYPES,
        default="auto",
        help="dtype of the pages: the weights', or fp8 (e4m3), half the bytes of float16; with "
        "--gpu it needs --float16 (%(default)s)",
    )
    command.add_argument(
        "--draft",
        choices=DRAFTS,
        default="ngram",
        help="guess the next tokens, and verify them in one step: ngram looks up what followed the "
        "same tokens before, model asks a small model (%(default)s)",
    )
    command.add_argument(
        "--draft-model",
        default="draft.npz",
        metavar="FILE",
        help="the small model, with the characters of the model: fa-numba train --layers 1 --out "
        "draft.npz (%(default)s)",
    )
    for name, (default, help) in sizes.items():
        command.add_argument(name, type=int, default=default, help=f"{help} (%(default)s)")


def main(options) -> int:
    """Serve until interrupted; return the exit status."""
    import threadpoolctl
    import uvicorn

    from fa_numba.language_model.server import guard
    from fa_numba.language_model.server.http import make_app

    if not 0 <= options.port <= 65535:
        raise BadRequest(f"--port must be from 0 to 65535, got {options.port}")
    keys = _keys(options.api_key)
    weights, config, characters = _model(options)
    try:
        checks.check_number_of("--blas-threads", options.blas_threads)
        drafter = _drafter(options, characters)
        sizes = {
            name: getattr(options, option[2:].replace("-", "_"))
            for name, option in OF_ENGINE.items()
        }
        engine = Engine(weights, config, decode=characters.decode, drafter=drafter, **sizes)
    except (TypeError, ValueError) as error:
        said = re.sub(r"\w+", lambda word: OPTIONS.get(word[0], word[0]), str(error))
        raise BadRequest(said) from None
    listening = _listen(options.host, options.port)
    host, port = listening.getsockname()[:2]
    print("Compiling; the next start will be quicker.", flush=True)
    _warm_up(weights, config, options)
    megabytes = engine.model.page_bytes * options.pages / 1e6
    print(
        f"{config.num_weights:,} weights, {options.pages} pages of {options.page_size} tokens "
        f"({megabytes:.1f} MB{', fp8' * (options.kv_dtype == 'fp8')}), answers of up to "
        f"{config.context} tokens with their prompts\n"
        f"http://{f'[{host}]' if ':' in host else host}:{port}  shows the server at work; "
        "POST /v1/completions answers. Ctrl+C ends it.",
        flush=True,
    )
    name = "untrained" if options.untrained else Path(options.model).stem
    app = make_app(
        engine, characters, model=name, hosts=_names(guard.LOOPBACK, options.host, host), keys=keys
    )
    settings = {"log_level": "warning", "timeout_graceful_shutdown": SECONDS_TO_END}
    server = uvicorn.Server(uvicorn.Config(app, **settings))
    handle_exit = server.handle_exit

    def cancel_and_exit(signal, frame):
        app.state.background.stop_soon()
        # A body or a reader that is cut off after SECONDS_TO_END is no error.
        logging.getLogger("uvicorn.error").disabled = True
        handle_exit(signal, frame)

    server.handle_exit = cancel_and_exit
    with listening, threadpoolctl.threadpool_limits(options.blas_threads, "blas"):
        server.run(sockets=[listening])
    return 0


def _keys(given):
    keys = given or [key for key in os.environ.get(KEYS, "").split(",") if key]
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise BadRequest("--api-key must be letters, digits and signs of ASCII, without spaces")
    return keys


def _names(loopback, asked, address):
    """Names by which requests may call a server that listens at an address."""
    if not ipaddress.ip_address(address).is_loopback:
        return ("*",)  # its names in the network are not known here
    return *loopback, f"[{asked}]" if ":" in asked else asked.lower()


def _listen(host, port):
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = "another program listens there; --port 0 takes a free one" if taken else error
        raise BadRequest(
            f"--host and --port must name a free address, got {host}:{port}: {reason}"
        ) from None


def _warm_up(weights, config, options):
    """Answer prompts of few and of many tokens on other pages, so that all kernels are compiled."""
    sizes = {name: getattr(options, name) for name in ("page_size", "kv_dtype", "topk_pages")}
    drafter = None if options.draft == "none" or options.draft_width == 1 else _Forks
    engine = Engine(weights, config, drafter=drafter, **sizes)
    longest = min(config.context, MANY_TOKENS, engine.pool.num_pages * options.page_size) - 3
    engine.generate([[0], [0] * max(1, longest)], Options(max_tokens=3, logprobs=0))


class _Forks:
    """A drafter whose trees branch, and so have a mask."""

    tokens = 2

    @staticmethod
    def draft(asks):
        return [DraftTree([0] * ask.nodes, [0] * ask.nodes) for ask in asks]


def _drafter(options, characters):
    """What guesses tokens, as the options say."""
    sizes = {"tokens": options.draft_tokens, "width": options.draft_width}
    if options.draft == "none":
        return None
    if options.draft == "ngram":
        return NGramDrafter(**sizes)
    if options.untrained:
        raise BadRequest("--draft model needs a model that has learned, not --untrained")
    advice = f"fa-numba train --layers 1 --out {options.draft_model} writes one"
    loaded, weights = _loaded(options.draft_model, options, advice)
    if loaded.characters.symbols != characters.symbols:
        raise BadRequest(
            f"--draft-model must have learned the text of the model: {options.draft_model} has "
            "other characters"
        )
    return ModelDrafter(weights, loaded.config, max_branches=options.batch, **sizes)


def _model(options):
    """Weights, config and vocabulary, as the options say."""
    if options.float16 and not options.gpu:
        raise BadRequest("--float16 needs --gpu: NumPy multiplies float16 slowly")
    if options.kv_dtype == "fp8" and options.gpu and not options.float16:
        raise BadRequest("--kv-dtype fp8 needs --float16 with --gpu: the fast kernel takes both")
    if options.untrained:
        characters = text.Characters.of(text.topics())
        config = Config(len(characters), context=256)
        weights = init_weights(config, xp=module_for(options.gpu))
        return _in_dtype(weights, options), config, characters
    advice = "fa-numba serve --untrained tries the server without one"
    loaded, weights = _loaded(options.model, options, advice)
    return weights, loaded.config, loaded.characters


def _loaded(path, options, advice):
    """A model in a file, and its weights as the options say."""
    xp = module_for(options.gpu)
    try:
        loaded = load_model(path)
    except NoModel as error:
        raise BadRequest(f"{error}; {advice}") from None
    latents = loaded.config.latent_dim
    if latents and (options.topk_pages or options.kv_dtype == "fp8"):
        option = "--topk-pages" if options.topk_pages else "--kv-dtype fp8"
        raise BadRequest(
            f"{option} needs a model without latents, got one of --latent-dim {latents}"
        )
    return loaded, _in_dtype(loaded.weights(xp), options)


def _in_dtype(weights, options):
    if not options.float16:
        return weights
    return {name: x.astype(np.float16) for name, x in weights.items()}
