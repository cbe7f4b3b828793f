"""Writing a file as a whole: an interrupted run leaves the old one or the new one, never a half."""

import contextlib
import os
from pathlib import Path


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
