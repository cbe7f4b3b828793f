"""A model in a file, with all that its training needs to continue.

The file is NumPy's .npz: the weights, AdamW's averages, the losses so far, and a description in
JSON. It is written beside its final name and then renamed, so that a run that is interrupted
leaves the old file or the new one, never a half of one.
"""

import contextlib
import json
import os
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fa_numba.language_model import model
from fa_numba.language_model.text import Characters, Damaged
from fa_numba.language_model.train import Recipe
from fa_numba.runtime import arrays

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a file.

    Attributes
    ----------
    config : Config
    recipe : Recipe
    characters : Characters
    text_sha256 : str
        Of the text that the model learns.
    state : dict of str to array
        As `Trainer.state`, in NumPy.
    losses : list of float
    validation_losses : dict of int to float
    """

    config: model.Config
    recipe: Recipe
    characters: Characters
    text_sha256: str
    state: dict
    losses: list
    validation_losses: dict

    def weights(self, xp=np) -> dict:
        """The weights in NumPy or CuPy, as `model` takes them."""
        return model.unflatten(self.config, xp.asarray(self.state["weights"]))


def save(path, trainer, characters, text_sha256) -> None:
    """Write a model in training to a file.

    Parameters
    ----------
    path : str or Path
    trainer : Trainer
    characters : Characters
    text_sha256 : str
    """
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


@contextlib.contextmanager
def replacing(path):
    """A new file, open for bytes, which takes the name `path` once it is complete."""
    part = Path(f"{path}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load(path) -> Checkpoint:
    """Read a file that `save` has written.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Checkpoint

    Raises
    ------
    FileNotFoundError
    Damaged
        The file is no checkpoint, or not a whole one.
    """
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise zipfile.BadZipFile("it is not a whole .npz file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                about = json.loads(str(stored["about"]))
                state = {name: stored[name] for name in ("weights", "averages", "squares")}
        if about["format"] != FORMAT:
            raise Damaged(f"{path} has format {about['format']}; this version reads {FORMAT}")
        config = model.Config(**about["config"])
        if any(x.shape != (config.num_weights,) or x.dtype != np.float32 for x in state.values()):
            raise Damaged(f"{path} has other numbers of weights than its sizes say")
        return Checkpoint(
            config,
            Recipe(**about["recipe"]),
            Characters(about["characters"]),
            about["text_sha256"],
            state,
            about["losses"],
            {int(steps): loss for steps, loss in about["validation_losses"]},
        )
    except (KeyError, EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise Damaged(f"{path} is no model that fa-numba train has written: {error}") from None
