"""A model in a file, with all that its training needs to continue.

The file is NumPy's .npz: the weights, AdamW's averages, the losses so far, and a description in
JSON. A run that is interrupted leaves the old file or the new one, never a half of one.

A file may come from anyone. No array is read before its header has shown that the file has all of
it and that the description asks for that size: a small file cannot take much memory.
"""

import json
import math
import os
import zipfile
from dataclasses import asdict, dataclass

import numpy as np

from fa_numba import checks
from fa_numba.language_model import model
from fa_numba.language_model.text import Characters, Damaged
from fa_numba.language_model.train import Recipe
from fa_numba.runtime import arrays
from fa_numba.runtime.replacing import replacing

FORMAT = 1
STATE = "weights", "averages", "squares"


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a file."""

    config: model.Config
    recipe: Recipe
    characters: Characters
    text_sha256: str  # of the text that the model learns
    state: dict  # as `Trainer.state`, in NumPy
    losses: list
    validation_losses: dict

    def weights(self, xp=np) -> dict:
        """The weights in NumPy or CuPy, as `model` takes them."""
        return model.unflatten(self.config, xp.asarray(self.state["weights"]))


def save(path, trainer, characters, text_sha256) -> None:
    """Write a model in training to a file."""
    about = {
        "format": FORMAT,
        "config": asdict(trainer.config),
        "recipe": asdict(trainer.recipe),
        "characters": characters.symbols,
        "text_sha256": text_sha256,
        "losses": trainer.losses_as_floats(),
        "validation_losses": list(trainer.validation_losses.items()),
    }
    state = {name: arrays.to_numpy(x) for name, x in trainer.state.items()}
    with replacing(path) as file:
        np.savez(file, about=np.array(json.dumps(about)), **state)


def load(path) -> Checkpoint:
    """Read a file that `save` has written.

    Raises
    ------
    FileNotFoundError
    Damaged
        The file is no checkpoint, not a whole one, or one that contradicts itself.
    """
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise zipfile.BadZipFile("it is not a whole .npz file")
            with zipfile.ZipFile(file) as stored:
                about = json.loads(str(_read(stored, "about", np.str_, ())))
                if about["format"] != FORMAT:
                    raise ValueError(f"its format is {about['format']!r:.60}, not {FORMAT}")
                config = model.Config(**about["config"])
                shape = (config.num_weights,)
                state = {name: _read(stored, name, np.float32, shape) for name in STATE}
        stored = Checkpoint(
            config,
            Recipe(**about["recipe"]),
            Characters(about["characters"]),
            str(about["text_sha256"]),
            state,
            about["losses"],
            {int(steps): loss for steps, loss in about["validation_losses"]},
        )
        _require_sense(stored)
    except (
        *(KeyError, EOFError, TypeError, ValueError, OverflowError, RecursionError, MemoryError),
        *(zipfile.BadZipFile, NotImplementedError),  # the latter: of a newer version of zip
    ) as error:
        said = f"{str(error) or type(error).__name__:.300}"
        raise Damaged(f"{path} is no model that fa-numba train has written: {said}") from None
    return stored


def _read(stored, name, dtype, shape):
    """Read an array of an .npz file; raise if its header names another shape or dtype."""
    entry = stored.getinfo(f"{name}.npy")
    size = os.fstat(stored.fp.fileno()).st_size
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or entry.file_size > size:
        raise ValueError(f"{name} is compressed or encrypted, or larger than the file")
    with stored.open(entry) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{name} has a header of another version than 1.0")
        got, _, kind = np.lib.format.read_array_header_1_0(file)
        if got != shape or not np.issubdtype(kind, dtype) or not kind.isnative:
            raise ValueError(
                f"{name} must be {np.dtype(dtype).name} of shape {shape}, as its sizes say, got "
                f"{kind} of shape {got}"
            )
        if file.tell() + math.prod(shape) * kind.itemsize != entry.file_size:
            raise ValueError(f"{name} has another number of bytes than its header says")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def _require_sense(stored):
    """Raise ValueError if the parts of a checkpoint contradict each other."""
    if len(stored.characters) != stored.config.vocabulary:
        raise ValueError(
            f"characters must be the {stored.config.vocabulary} of the vocabulary, got "
            f"{len(stored.characters)}"
        )
    for name, numbers in stored.state.items():
        if not np.isfinite(numbers).all() or (name == "squares" and (numbers < 0).any()):
            raise ValueError(f"{name} must be finite, and squares at least 0; some are not")
    checks.check_losses("losses", stored.losses)
    checks.check_losses("validation_losses", list(stored.validation_losses.values()))
    if late := [n for n in stored.validation_losses if not 0 <= n <= len(stored.losses)]:
        raise ValueError(
            f"validation_losses must be of steps 0 to {len(stored.losses)}, got {late[0]}"
        )
