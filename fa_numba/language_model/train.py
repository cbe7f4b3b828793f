"""Training: AdamW on random pieces of a text, with warm-up, a cosine schedule and clipping.

A step depends on the weights, the optimizer's two averages, and its number alone: it draws its
batch with a generator of its own, seeded by the recipe's seed and the step. So a run that stops and
continues has the same losses, to the bit, as one that does not.

Papers: Loshchilov and Hutter 2019, arXiv:1711.05101 (AdamW); Loshchilov and Hutter 2017,
arXiv:1608.03983 (cosine schedule); Pascanu et al. 2013, arXiv:1211.5063 (clipping by the norm).
"""

import math
from dataclasses import dataclass

import numpy as np

from fa_numba import checks
from fa_numba.language_model import adamw, gradients, model, products, step_graph
from fa_numba.language_model.blas_threads import one_blas_thread

VALIDATION_BATCHES = 20
VALIDATION_SEED = 1_000_003  # other batches than a step's


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes
    ----------
    steps : int, default=1000
    batch : int, default=12
        Sequences in a step, each of as many tokens as the model's context.
    learning_rate : float, default=3e-3
        The largest one, after the warm-up.
    warm_up : int, default=50
        Steps in which the learning rate rises from 0.
    last_rate : float, default=0.1
        The learning rate in the end, as a share of the largest.
    beta1, beta2 : float, default=0.9, 0.99
        Shares that the averages of gradients and of their squares keep in a step.
    weight_decay : float, default=0.1
    clip : float, default=1.0
        Largest norm of a step's gradients.
    seed : int, default=0
        Of the first weights and of the batches.
    float16 : bool, default=False
        Compute in float16, from copies of float32 weights; for CuPy.
    """

    steps: int = 1000
    batch: int = 12
    learning_rate: float = 3e-3
    warm_up: int = 50
    last_rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    float16: bool = False

    def __post_init__(self):
        checks.check_recipe(**vars(self))

    def learning_rate_at(self, step) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warm_up:
            return self.learning_rate * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        cosine = (1 + math.cos(math.pi * min(1.0, done))) / 2
        return self.learning_rate * (self.last_rate + (1 - self.last_rate) * cosine)


class Trainer:
    """A model in training.

    Parameters
    ----------
    config : Config
    recipe : Recipe
    train, validation : arrays of shape (tokens,), int32
        NumPy; each must be longer than the model's context.
    xp : module, default=numpy
        numpy or cupy: where the model is.
    graph : bool, default=True
        With CuPy, run a step as one CUDA graph from the fourth on, where cuBLAS can be captured.
    **kernels
        Those of `gradients.Kernels`.

    Attributes
    ----------
    weights : dict of str to array
        float32, as `model` takes them.
    state : dict of str to array
        "weights", and AdamW's "averages" and "squares": each (num_weights,), float32.
    losses : list of float
        Of each step so far, in nats per token.
    validation_losses : dict of int to float
        By the number of steps before.
    """

    def __init__(self, config, recipe, train, validation, *, xp=np, graph=True, **kernels):
        for name, tokens in (("train", train), ("validation", validation)):
            checks.check_text_length(name, len(tokens), config.context + 1)
        checks.check_float16(recipe.float16, xp)
        self.config, self.recipe, self.kernels = config, recipe, gradients.Kernels(**kernels)
        self.state = {
            "weights": model.flatten(model.init_weights(config, recipe.seed, xp)),
            "averages": xp.zeros(config.num_weights, np.float32),
            "squares": xp.zeros(config.num_weights, np.float32),
        }
        self.weights = model.unflatten(config, self.state["weights"])
        self.texts = {"train": xp.asarray(train), "validation": xp.asarray(validation)}
        self.losses, self.validation_losses = [], {}
        self._all_grads = xp.empty(config.num_weights, np.float32)
        self._grads = model.unflatten(config, self._all_grads)
        self._xp, self._run = xp, lambda numbers: self._compute(xp.asarray(numbers))
        if graph and xp is not np and products.cublas(xp.cuda.Device().id) is not None:
            inputs = xp.empty(recipe.batch + adamw.NUM_NUMBERS, np.int32)
            self._run = step_graph.StepGraph(self._compute, inputs).run

    def continue_from(self, state, losses, validation_losses):
        """Take over the state of another run, with its losses so far.

        Parameters
        ----------
        state : dict of str to array
            NumPy arrays, as `state`.
        losses : list of float
        validation_losses : dict of int to float
        """
        for name, numbers in self.state.items():
            numbers[:] = self._xp.asarray(state[name])
        self.losses, self.validation_losses = list(losses), dict(validation_losses)

    @property
    def steps_done(self) -> int:
        """Number of steps so far."""
        return len(self.losses)

    def step(self):
        """Train on one batch.

        Returns
        -------
        array of shape (), float32
            The loss before the step; `losses` has it too. A GPU may not have computed it yet.
        """
        number, recipe = self.steps_done, self.recipe
        starts = self._starts("train", (recipe.seed, number))
        numbers = np.concatenate([starts, adamw.numbers_of(number, recipe).view(np.int32)])
        with one_blas_thread():
            self.losses.append(self._run(numbers))
        return self.losses[-1]

    def _compute(self, numbers):
        """A step: the gradients of a batch, and AdamW.

        `numbers`, int32, are where the pieces of the batch start, and those of AdamW.
        """
        starts, of_adamw = numbers[: self.recipe.batch], numbers[self.recipe.batch :]
        loss, _ = gradients.loss_and_grads(
            self._weights_to_compute_with(),
            self.config,
            *self._pieces("train", starts),
            grads=self._grads,
            **self.kernels._asdict(),
        )
        adamw.update(**self.state, grads=self._all_grads, numbers=of_adamw.view(np.float32))
        return loss

    def _weights_to_compute_with(self):
        if not self.recipe.float16:
            return self.weights
        return model.unflatten(self.config, self.state["weights"].astype(np.float16))

    def validate(self) -> float:
        """Mean loss of batches of the validation text, the same ones each time."""
        weights, losses = self._weights_to_compute_with(), []
        for i in range(VALIDATION_BATCHES):
            starts = self._xp.asarray(self._starts("validation", (VALIDATION_SEED, i)))
            batch, kernels = self._pieces("validation", starts), self.kernels._asdict()
            with one_blas_thread():
                losses.append(gradients.loss_of(weights, self.config, *batch, **kernels))
        loss = float(np.mean([float(x) for x in losses]))
        self.validation_losses[self.steps_done] = loss
        return loss

    def _starts(self, name, seed):
        """Where random pieces of a text start."""
        last = len(self.texts[name]) - self.config.context
        rng = np.random.default_rng(seed)
        return rng.integers(0, last, self.recipe.batch, dtype=np.int32)

    def _pieces(self, name, starts):
        """Pieces of a text, and the tokens that follow each of their tokens."""
        offsets = self._xp.arange(self.config.context + 1, dtype=np.int32)
        pieces = self.texts[name][starts[:, None] + offsets]
        return pieces[:, :-1], pieces[:, 1:]

    def losses_as_floats(self) -> list:
        """The losses so far; this waits for a GPU."""
        self.losses = [float(x) for x in self.losses]
        return self.losses
