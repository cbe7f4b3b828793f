"""Compiled functions on disk, beside the GPU's, so that a new process does not compile them again.

Numba keeps such files itself, and asks the file of a function whether its source has changed; but
most of the source of a function here is in other files. So this cache asks the whole package. It
lies in the folder of `runtime.kernel_cache`: $FA_NUMBA_CACHE/cpu, by default
~/.cache/fa_numba/cpu. Where nothing can be written, nothing is kept. Numba's files are pickles: as
there, a file of another user is not loaded.

The name of a function in machine code ends with a number that Numba counts from 1 in each process.
So two processes may give one name to two functions of a factory, one for float16 and one for
float32; a third that loads the machine code of both would call one of them in place of the other.
Here each process counts from a random number on.

One process compiles a function, and others that need it wait: ranks, workers of pytest.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import secrets
import shutil
import time
from pathlib import Path

from numba.core import caching
from numba.core.bytecode import FunctionIdentity

from fa_numba.runtime import kernel_cache, quick_compiler  # noqa: F401   it compiles sooner
from numba_cuda_simulator.kept_files import KEPT_DAYS

try:
    import fcntl
except ImportError:  # Windows: each process compiles
    fcntl = None

PACKAGE = Path(__file__).parents[1]  # fa_numba
# Rooms that no job needs: a change there compiles nothing anew.
NOT_IN_KEY = ("figures", "microscope", "torch", "workbook")
LONGEST_WAIT = 120  # seconds: a process that was interrupted in the middle may hold its file


def _count_anew():
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(60))


_count_anew()
if hasattr(os, "register_at_fork"):  # a child and its parent compile different functions
    os.register_at_fork(after_in_child=_count_anew)


@functools.cache
def source_digest():
    """Digest of all source files of this package on which compiled CPU code may depend."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] not in NOT_IN_KEY:
            digest.update(
                str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes() + b"\0"
            )
    return digest.hexdigest()


class _Locator(caching._CacheLocator):
    def __init__(self, py_func):
        self._lineno = py_func.__code__.co_firstlineno

    def get_cache_path(self):
        return str(kernel_cache.folder() / "cpu" / source_digest()[:16])

    def get_source_stamp(self):
        return source_digest()

    def get_disambiguator(self):
        return str(self._lineno)

    @classmethod
    def from_function(cls, py_func, py_file):
        return cls(py_func)


class _Format(caching.CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _Pickles(caching.IndexDataCacheFile):
    def _load_index(self):
        return super()._load_index() if kernel_cache.is_ours(self._index_path) else {}

    def _load_data(self, name):
        path = self._data_path(name)
        if not kernel_cache.is_ours(path):
            raise PermissionError(path)  # as a file that cannot be read
        return super()._load_data(name)


class _Files(caching.FunctionCache):
    _impl_class = _Format

    def __init__(self, py_func):
        super().__init__(py_func)
        self._cache_file = _Pickles(
            self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )
        self._turn = None  # the file whose lock says that this process compiles

    def load_overload(self, signature, target_context):
        loaded = self._load(signature, target_context)
        if loaded is None and self._wait_for_turn(signature):
            loaded = self._load(signature, target_context)
        if loaded is not None:
            self._end_turn()
        return loaded

    def _wait_for_turn(self, signature):
        """Lock a file of this function and signature; return whether another process had it."""
        self._end_turn()
        if fcntl is None:
            return False
        name = hashlib.sha256(str(signature).encode()).hexdigest()[:16]
        path, end = f"{self._cache_file._index_path}.{name}.lock", time.monotonic() + LONGEST_WAIT
        waited = False
        with contextlib.suppress(OSError):  # no file can be written: each process compiles
            os.makedirs(self._cache_path, exist_ok=True)
            self._turn = open(path, "ab")
            while time.monotonic() < end:
                try:
                    fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return waited
                except BlockingIOError:
                    waited = True
                    time.sleep(0.05)
        return waited

    def _end_turn(self):
        if self._turn is not None:
            self._turn.close()
            self._turn = None

    def _load(self, signature, target_context):
        try:
            loaded = super().load_overload(signature, target_context)
            if loaded is not None:
                os.utime(self.cache_path)  # used now
            return loaded
        except OSError:
            return None
        except Exception:  # a damaged file: the function is compiled and saved again
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature, data):
        with contextlib.suppress(OSError):
            super().save_overload(signature, data)
            unused_since = time.time() - KEPT_DAYS * 24 * 3600
            for old in Path(self.cache_path).parent.iterdir():
                if old.stat().st_mtime < unused_since:
                    shutil.rmtree(old, ignore_errors=True)
        self._end_turn()


@functools.cache
def keep(function):
    """Let a compiled function, a dispatcher or a CFunc, be loaded from disk, and saved there."""
    if kernel_cache.folder() is not None:
        function._cache = _Files(function.__wrapped__)
