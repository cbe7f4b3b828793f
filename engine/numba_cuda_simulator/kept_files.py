"""Files with compiled code that a process keeps for the next one.

Such a file runs as this user. So whoever can write to the folder can run code as this user: a
folder or a file of another user, root excepted, is refused with a warning. A file has a checksum
before its content, is written under another name and then moved, so that another process sees all
of it or nothing, and is removed when nobody has used it for 60 days.
"""

import contextlib
import functools
import hashlib
import os
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

KEPT_DAYS = 60  # since a file was last used
DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class KeptFiles:
    """The files of one kind.

    Attributes
    ----------
    variable : str
        The environment variable that names their folder; if it is empty, none are kept.
    default : str
        The folder's name in ~/.cache, where the variable is not set.
    suffix : str
        Of the names of the files.
    """

    variable: str
    default: str
    suffix: str

    def folder(self):
        """Return the folder of the files, or None if none are kept."""
        chosen = os.environ.get(self.variable)
        if chosen is None:
            try:
                cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            except RuntimeError:  # this user has no home
                return None
            chosen = Path(cache, self.default)
        return Path(chosen) if chosen and self.is_ours(chosen) else None

    def is_ours(self, path):
        """Tell whether a folder or a file is this user's, or root's, or not there; else warn."""
        try:
            owners = {os.lstat(path).st_uid, os.stat(path).st_uid}  # of a link, and of its target
        except OSError:
            return True
        strangers = owners - {0, getattr(os, "geteuid", int)()}
        for owner in strangers:
            warn(str(path), owner, self.variable)
        return not strangers

    def read(self, path):
        """Return the content of a file, or None where there is none that may be used."""
        try:
            data = path.read_bytes() if self.is_ours(path) else b""
        except OSError:
            return None
        checksum, content = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        if not content or hashlib.sha256(content).digest() != checksum:  # cut short, or another's
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return content

    def write(self, path, content):
        """Write a file, and remove those that nobody uses; do nothing if that is not possible."""
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = tempfile.NamedTemporaryFile(dir=path.parent, delete=False)
            try:
                with file:
                    file.write(hashlib.sha256(content).digest() + content)
                os.replace(file.name, path)
            except BaseException:  # no room, for instance
                os.unlink(file.name)
                raise
            unused_since = time.time() - KEPT_DAYS * 24 * 3600
            for old in path.parent.glob("*" + self.suffix):  # mostly of older versions
                if old.stat().st_mtime < unused_since:
                    old.unlink()


@functools.cache  # once
def warn(path, owner, variable):
    warnings.warn(
        f"{path} belongs to user {owner}, who could change the compiled code in it: it is not "
        f"used. {variable} must name a folder to which nobody but you can write",
        RuntimeWarning,
        stacklevel=2,
    )
