"""How fast does the language model learn on a CPU, with the jobs and with the lessons' kernels?

curve     a run with the defaults of fa-numba train: steps and seconds to a validation loss of 1.55
          nats per character
kernels   100 steps with the jobs, and with the lessons' kernels on the engine: ms of a step, and
          the largest difference of their losses
"""

import time

import numpy as np

from benchmarks.bench_language_model import corpus, curve_row
from benchmarks.timing import cpu, save
from fa_numba.language_model import kernel_choice
from fa_numba.language_model.model import Config
from fa_numba.language_model.train import Recipe, Trainer

GOAL, STEPS = 1.55, 100


def rows_of_this_machine():
    vocabulary, *parts = corpus()
    run = Trainer(Config(vocabulary), Recipe(), *parts)
    rows, losses = [curve_row(run, GOAL, 1000, "flash_attn, flash_attn_grad")], {}
    for name in ("fastest", "lesson"):
        kernels = kernel_choice.by_name(name)
        run = Trainer(Config(vocabulary), Recipe(), *parts, **kernels._asdict())
        run.step()
        start = time.perf_counter()
        for _ in range(STEPS - 1):
            run.step()
        ms = (time.perf_counter() - start) / (STEPS - 1) * 1e3
        losses[name] = run.losses_as_floats()
        difference = np.abs(np.subtract(losses[name], losses["fastest"])).max()
        rows.append(
            {
                "what": "kernels",
                "kernel": name,
                "weights": run.config.num_weights,
                "ms": round(ms, 1),
                "last loss": round(losses[name][-1], 4),
                "largest difference": float(f"{difference:.1g}"),
            }
        )
    return rows


def main():
    note = "ms of a step; losses in nats per character"
    save("language_model_cpu", rows_of_this_machine(), note=note, on=cpu())
