"""``fa-numba train`` and ``fa-numba generate``: a small language model, from the command line.

fa-numba train
fa-numba generate "The function"
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from fa_numba import checks
from fa_numba.language_model import checkpoint, generate, kernel_choice, text
from fa_numba.language_model.model import Config
from fa_numba.language_model.train import Recipe, Trainer
from fa_numba.runtime import arrays, installing
from fa_numba.runtime.replacing import replacing

MODEL = "model.npz"
SAMPLE = 160  # characters
SECONDS_BETWEEN_LINES = 10
SIZES = ("layers", "heads", "kv_heads", "head_dim", "context", "latent_dim")
FOR_THE_RECIPE = ("steps", "batch", "learning_rate", "seed", "float16")


class BadRequest(ValueError):
    """The command line is wrong; the message names the option or argument."""


class NoModel(BadRequest):
    """There is no file of that name."""


def load_model(path):
    """Read the file of a model; the message of `BadRequest` says why that is not possible."""
    try:
        return checkpoint.load(path)
    except FileNotFoundError:
        raise NoModel(f"there is no file {path}: fa-numba train writes one, in minutes") from None
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from None


def add_train_options(parser):
    """Declare the options of ``fa-numba train``."""
    parser.add_argument(
        "--text", nargs="+", metavar="FILE", help="UTF-8 files to learn; else Python's help topics"
    )
    parser.add_argument("--out", default=MODEL, metavar="FILE", help=f"file of the model ({MODEL})")
    parser.add_argument(
        "--resume", action="store_true", help="continue the training of the model in that file"
    )
    parser.add_argument("--steps", type=int, metavar="N", help=f"batches ({Recipe.steps})")
    parser.add_argument(
        "--batch", type=int, metavar="N", help=f"sequences in a batch ({Recipe.batch})"
    )
    parser.add_argument(
        "--learning-rate", type=float, metavar="X", help=f"largest ({Recipe.learning_rate})"
    )
    parser.add_argument("--seed", type=int, metavar="N", help=f"({Recipe.seed})")
    for size in SIZES:
        help = f"of the model ({getattr(Config, size)})"
        parser.add_argument(_option(size), type=int, metavar="N", help=help)
    parser.add_argument(
        "--kernels",
        default="fastest",
        metavar="WHICH",
        help="fastest (default), lesson, or a folder with your exercises",
    )
    parser.add_argument(
        "--every", type=int, default=250, metavar="N", help="steps between samples (250)"
    )
    add_gpu_option(parser)
    parser.add_argument(
        "--float16", action="store_true", default=None, help="compute in float16; needs --gpu"
    )


def add_generate_options(parser):
    """Declare the options of ``fa-numba generate``."""
    parser.add_argument("prompt", help="the text to continue")
    parser.add_argument(
        "--model", default=MODEL, metavar="FILE", help=f"file that fa-numba train wrote ({MODEL})"
    )
    parser.add_argument("--length", type=int, default=400, metavar="N", help="characters (400)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="X", help="0 is greedy (0.8)"
    )
    parser.add_argument("--top-k", type=int, default=32, metavar="N", help="32 at most (32)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(0)")
    add_gpu_option(parser)


def add_gpu_option(parser):
    """Declare --gpu."""
    parser.add_argument("--gpu", action="store_true", help="compute on the GPU, with CuPy")


def module_for(gpu):
    """CuPy for a GPU, else NumPy."""
    if not gpu:
        return np
    if importlib.util.find_spec("cupy") is None:
        raise BadRequest(
            "--gpu needs CuPy, which is not installed here: "
            f"{installing.command_for_gpu_code('cuda13')}, or [cuda12]"
        )
    import cupy

    if not arrays.gpu_available():
        raise BadRequest(f"--gpu needs a GPU. {arrays.backend()}")
    return cupy


def train(options) -> int:
    """Run ``fa-numba train``; returns the exit status."""
    run = _Run(options)
    print(run.description())
    if options.kernels == "fastest":
        print("The first run compiles its kernels before step 1.", flush=True)
    run.try_out()
    run.compare_kernels()
    with _interrupts_after_a_step() as stop:
        run.train(stop)
    run.save_somewhere()
    if stop.is_set():
        print(f"Stopped after {run.trainer.steps_done} steps: --resume continues.")
        return 130
    return 0


@contextlib.contextmanager
def _interrupts_after_a_step():
    """An event that Ctrl-C sets: a step that it broke off would leave half of the weights updated.

    A second Ctrl-C ends the program.
    """
    stop, usual = threading.Event(), signal.getsignal(signal.SIGINT)

    def on_interrupt(*_):
        stop.set()
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, usual)


class _Run:
    """One run of ``fa-numba train``: a trainer, its samples, its files."""

    def __init__(self, options):
        self.options, self.out = options, Path(options.out)
        self.xp = module_for(options.gpu)
        corpus = _read_text(options.text)
        self.sha256 = hashlib.sha256(corpus.encode()).hexdigest()
        try:
            named = options.kernels in ("fastest", "lesson")
            self.own = None if named else kernel_choice.OfExercises(options.kernels)
            self.kernels = self.own.kernels if self.own else kernel_choice.by_name(options.kernels)
            checks.check_number_of("every", options.every)
            self.trainer = (self._resume if options.resume else self._start)(corpus)
        except BadRequest:
            raise
        except (TypeError, ValueError) as error:
            raise BadRequest(_of_the_command(error, options)) from None

    def compare_kernels(self):
        """Refuse to train with kernels of a learner that are wrong, which the loss hardly shows."""
        if self.own is None:
            return
        try:
            for exercise, result, off, allowed in self.own.differences(
                self.trainer.config, self.xp
            ):
                if not off <= allowed:  # NaN is wrong too
                    raise BadRequest(
                        f"--kernels: {exercise} is wrong: {result} of a batch differs from that of "
                        f"the fastest kernels by up to {off:.2g}, allowed {allowed:.2g}. "
                        f"fa-numba check {exercise} says more"
                    )
        except NotImplementedError as error:  # as a stub of an exercise raises
            raise BadRequest(f"--kernels: {error} is not written yet") from None

    def try_out(self):
        """Write the model beside its file and remove it: a full disk is known before step 1."""
        trial = self.out.with_name(f"{self.out.name}.trial")
        try:
            checkpoint.save(trial, self.trainer, self.characters, self.sha256)
        except OSError as error:
            raise BadRequest(
                f"--out must have room for the model, but {self.out} cannot be written: "
                f"{error.strerror}"
            ) from None
        finally:
            trial.unlink(missing_ok=True)

    def _start(self, corpus):
        if self.out.is_dir():
            raise BadRequest(f"--out must be a file, got the folder {self.out}")
        if self.out.exists():
            raise BadRequest(
                f"{self.out} exists: --resume continues its training, --out names another file"
            )
        if not self.out.parent.is_dir():
            raise BadRequest(f"--out must be in a folder that exists, got {self.out}")
        if not os.access(self.out.parent, os.W_OK):
            raise BadRequest(f"--out must be in a folder that can be written, got {self.out}")
        self.characters = text.Characters.of(corpus)
        config = Config(len(self.characters), **_given(self.options, SIZES))
        return self._trainer(config, Recipe(**_given(self.options, FOR_THE_RECIPE)), corpus)

    def _resume(self, corpus):
        stored = load_model(self.out)
        if sizes := _given(self.options, SIZES):
            raise BadRequest(f"{_option(next(iter(sizes)))} is that of the model with --resume")
        if stored.text_sha256 != self.sha256:
            raise BadRequest(f"--text must be the text that {self.out} has learned so far")
        self.characters = stored.characters
        recipe = replace(stored.recipe, **_given(self.options, FOR_THE_RECIPE))
        trainer = self._trainer(stored.config, recipe, corpus)
        trainer.continue_from(stored.state, stored.losses, stored.validation_losses)
        return trainer

    def _trainer(self, config, recipe, corpus):
        if recipe.float16 and self.xp is np:
            raise BadRequest("training in float16 needs --gpu: NumPy multiplies float16 slowly")
        if len(self.characters) < 2:
            raise BadRequest(
                "--text must have at least two different characters, or there is nothing to "
                f"learn, got only {self.characters.symbols!r}"
            )
        parts = text.split(self.characters.encode(corpus))
        if len(parts[1]) <= config.context:
            raise BadRequest(
                f"--text must be longer for a context of {config.context}: its last tenth, which "
                f"is for validation, must have at least {config.context + 1} characters, got "
                f"{len(parts[1])}"
            )
        return Trainer(config, recipe, *parts, xp=self.xp, **self.kernels._asdict())

    def description(self):
        """The text and the model, in words."""
        config, (train_part, _) = self.trainer.config, self.trainer.texts.values()
        kept = f"{config.kv_heads} of keys and values"
        if config.latent_dim:
            kept += f" from latents of {config.latent_dim}"
        source = ", ".join(self.options.text or ["Python's help topics"])
        return (
            f"Text: {source}; {len(train_part)} characters to learn, "
            f"{len(self.characters)} different ones.\n"
            f"Model: {config.num_weights} weights, {config.layers} layers, {config.heads} heads "
            f"of {config.head_dim}, {kept}, context "
            f"{config.context}; {'CuPy, on the GPU' if self.xp is not np else 'NumPy'}."
        )

    def train(self, stop):
        """All steps that are left, or those until an event is set, with a progress bar."""
        trainer, total = self.trainer, self.trainer.recipe.steps
        if trainer.steps_done >= total:
            print(f"All {total} steps are done: a larger --steps continues.")
        with _progress(total, trainer.steps_done) as show:
            while trainer.steps_done < total and not stop.is_set():
                trainer.step()
                done = trainer.steps_done
                if done % 10 == 0 or self.xp is np:  # to look at a GPU's loss waits for it
                    show(done, self._finite_loss())
                if done % self.options.every == 0 or done == total:
                    self._finite_loss()
                    self.look(show)

    def _finite_loss(self):
        loss = float(self.trainer.losses[-1])
        if not math.isfinite(loss):
            raise BadRequest(
                f"the loss of step {self.trainer.steps_done} is {loss}: a smaller --learning-rate "
                f"may help, or no --float16. {self.out} is as it was last written"
            )
        return loss

    def look(self, show):
        """Validate, print a sample, and write the model."""
        loss, done = self.trainer.validate(), self.trainer.steps_done
        said = f"step {done}: validation loss {loss:.3f} nats per character\n"
        last = float(self.trainer.losses[-1])
        show(done, last, f"{said}{_indented(text.shown(self.sample()))}\n")
        try:
            self.save()
        except OSError as error:
            said = (
                f"{self.out} cannot be written: {error.strerror}. It is as it was last written, if "
                "at all; training goes on, and the model stays in memory"
            )
            show(done, last, said)

    def sample(self):
        """Text that the model writes now, after a line feed."""
        start = self.characters.encode("\n") if "\n" in self.characters.symbols else [0]
        trainer = self.trainer
        tokens = generate.generate(trainer.weights, trainer.config, start, SAMPLE)
        return self.characters.decode(tokens)

    def save_somewhere(self):
        """Write the model; if its file cannot be written, another one, and say where it is."""
        try:
            return self.save()
        except OSError as error:
            said = f"{self.out} cannot be written: {error.strerror}"
        for folder in (Path(tempfile.gettempdir()), Path.home()):
            with contextlib.suppress(OSError):
                handle, other = tempfile.mkstemp(".npz", f"{self.out.stem}-", folder)
                os.close(handle)
                try:
                    checkpoint.save(other, self.trainer, self.characters, self.sha256)
                except OSError:
                    os.unlink(other)
                    continue
                raise BadRequest(
                    f"{said}. The model, with all {self.trainer.steps_done} steps, is in {other}: "
                    f"move it to {self.out} once there is room, and --resume continues"
                )
        raise BadRequest(
            f"{said}, nor can any file in {tempfile.gettempdir()} and {Path.home()}: the steps "
            f"since it was last written are lost"
        )

    def save(self):
        """Write the model, and a picture of its losses beside it."""
        trainer = self.trainer
        if trainer.losses:
            self._finite_loss()  # a broken model must not replace a good one
        checkpoint.save(self.out, trainer, self.characters, self.sha256)
        if importlib.util.find_spec("matplotlib") is not None and trainer.losses:
            from fa_numba.figures.loss_curve import loss_curve

            figure = loss_curve(
                trainer.losses,
                {},
                points={"validation": trainer.validation_losses},
                label="nats per character",
                title=f"{self.out.name}: {trainer.config.num_weights} weights",
            )
            picture = self.out.with_suffix(".png")
            try:
                with replacing(picture) as file:
                    figure.savefig(file, format="png", dpi=110)
            except OSError as error:  # the model is written, which matters more
                print(f"{picture} cannot be written: {error.strerror}", flush=True)


def _given(options, names):
    """The options of these names that the command line has."""
    return {n: getattr(options, n) for n in names if getattr(options, n) is not None}


def _option(name):
    return f"--{name.replace('_', '-')}"


def _of_the_command(error, options):
    """An error's message; the argument that it begins with is named as the command names it."""
    name, _, said = str(error).partition(" ")
    is_option = hasattr(options, name) and name != "prompt"
    return f"{_option(name)} {said}" if is_option else str(error)


def _read_text(files):
    if not files:
        return text.topics()
    try:
        found = text.read_files(files)
    except (OSError, ValueError) as error:
        raise BadRequest(f"--text must name files of UTF-8 text: {error}") from None
    if not found:
        raise BadRequest(f"--text must have characters, got none in {', '.join(files)}")
    return found


def _indented(sample):
    return "\n".join(f"    {line}" for line in sample.splitlines())


@contextlib.contextmanager
def _progress(total, done):
    """show(step, loss, message=None), which moves a bar, or prints lines now and then.

    A line has the time of the steps since the line before. The first step, which may have compiled
    the kernels, is not among them.

    Parameters
    ----------
    total : int
        Steps of the whole run.
    done : int
        Steps of earlier runs.
    """
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        from rich import progress

        columns = [
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[loss]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        ]
        with progress.Progress(*columns) as bar:
            task = bar.add_task("", total=total, completed=done, loss="")

            def move(step, loss, message=None):
                bar.update(task, completed=step, loss=f"loss {loss:.3f}")
                if message:
                    bar.console.print(message, markup=False, highlight=False)

            yield move
        return
    last_step, last_line = done, time.monotonic()

    def tell(step, loss, message=None):
        nonlocal last_step, last_line
        now = time.monotonic()
        seconds, steps = now - last_line, step - last_step
        first = last_step == done
        if message:
            print(message, flush=True)
        elif seconds > SECONDS_BETWEEN_LINES:
            said = f"after {seconds:.0f} s" if first else f"{seconds / steps * 1e3:.0f} ms each"
            print(f"step {step} of {total}: loss {loss:.3f}, {said}", flush=True)
        elif not first:
            return
        last_step, last_line = step, now

    yield tell


def generate_text(options) -> int:
    """Run ``fa-numba generate``; returns the exit status."""
    xp = module_for(options.gpu)
    model = load_model(options.model)
    try:
        prompt = model.characters.encode(options.prompt, "prompt")
        tokens = generate.generate(
            model.weights(xp),
            model.config,
            prompt,
            options.length,
            temperature=options.temperature,
            top_k=options.top_k,
            seed=options.seed,
        )
        print(options.prompt, end="", flush=True)
        for token in tokens:
            piece = model.characters.decode([token])
            print(text.shown(piece) if sys.stdout.isatty() else piece, end="", flush=True)
    except (TypeError, ValueError) as error:
        raise BadRequest(_of_the_command(error, options)) from None
    print()
    return 0
