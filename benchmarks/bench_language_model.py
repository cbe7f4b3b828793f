"""How fast does the language model learn on a GPU, and how long is a step beside PyTorch's?

The model has nanoGPT's shape: 6 layers, 6 heads of 64, 256 tokens in a row, 64 rows in a batch.

step      ms of a step in float16 and in float32, and those that Python alone takes; PyTorch's step,
          with scaled_dot_product_attention under autocast to bfloat16
curve     steps and seconds to a validation loss of 1.47 nats per character

A step has its batch, its gradients and its optimizer. Compiling and validating are not in the
seconds.
"""

import time

import numpy as np

from benchmarks.timing import save
from fa_numba.language_model import text
from fa_numba.language_model.model import Config
from fa_numba.language_model.train import Recipe, Trainer

GOAL = 1.47  # nats per character
NANOGPT = {"layers": 6, "heads": 6, "kv_heads": 6, "head_dim": 64, "context": 256}
BATCH, STEPS, WARM_UP, EVERY = 64, 50, 10, 50


def corpus():
    """The shipped text: (number of characters, tokens to learn, tokens to validate with)."""
    topics = text.topics()
    characters = text.Characters.of(topics)
    return len(characters), *text.split(characters.encode(topics))


def curve_row(trainer, goal, most_steps, what):
    """Train until the validation loss is below `goal`: one row."""
    trainer.step()
    trainer.validate()  # both compile
    seconds, start, loss = 0.0, time.perf_counter(), np.inf
    while loss > goal and trainer.steps_done < most_steps:
        trainer.step()
        if trainer.steps_done % EVERY == 0:
            float(trainer.losses[-1])  # waits for a GPU
            seconds += time.perf_counter() - start
            loss = trainer.validate()
            start = time.perf_counter()
    return {
        "what": "curve",
        "kernel": what,
        "weights": trainer.config.num_weights,
        "steps": trainer.steps_done,
        "seconds": round(seconds, 1),
        "validation loss": round(loss, 3),
    }


def wall_ms(step, wait, steps=STEPS):
    """Milliseconds of a step, and those until Python has enqueued it."""
    for _ in range(WARM_UP):
        step()
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    enqueued = time.perf_counter() - start
    wait()
    return (time.perf_counter() - start) / steps * 1e3, enqueued / steps * 1e3


def trainer(float16, steps):
    import cupy

    vocabulary, *parts = corpus()
    recipe = Recipe(steps=steps, batch=BATCH, learning_rate=1e-3, warm_up=100, float16=float16)
    return Trainer(Config(vocabulary, **NANOGPT), recipe, *parts, xp=cupy)


def our_rows():
    import cupy

    rows = []
    for float16 in (True, False):
        run = trainer(float16, STEPS)
        ms, host = wall_ms(run.step, cupy.cuda.Device().synchronize)
        kind = "float16" if float16 else "float32"
        rows.append(
            {
                "what": "step",
                "kernel": f"fa-numba {kind}",
                "weights": run.config.num_weights,
                "ms": round(ms, 2),
                "Python's ms": round(host, 2),
            }
        )
    rows += torch_rows()
    rows.append(curve_row(trainer(True, 2000), GOAL, 2000, "fa-numba float16"))
    return rows


def torch_rows():
    """PyTorch's steps, where it is installed; benchmarks/small_gpt.py is the model."""
    try:
        import torch
    except ImportError:
        return []
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    from benchmarks.small_gpt import Training

    rows = []
    for name, compiled in (("PyTorch", False), ("PyTorch, torch.compile", True)):
        run = Training(sdpa, NANOGPT["context"], BATCH, "cuda", torch.bfloat16, compiled)
        ms, host = wall_ms(run.step, torch.cuda.synchronize)
        rows.append(
            {
                "what": "step",
                "kernel": name,
                "weights": sum(w.numel() for w in run.model.parameters()),
                "ms": round(ms, 2),
                "Python's ms": round(host, 2),
            }
        )
    return rows


def main():
    save("language_model", our_rows(), note="ms of a step; losses in nats per character")
