"""A function that a job may call: where it is, when it cannot run, how its arguments differ."""

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

from fa_numba.checks import ANY_HEAD_DIMS, ONE_HEAD_DIM, HeadDims
from fa_numba.checks.refused import RefusedError

CPU = "cpu"  # the room of the jobs compiled for the CPU
WITH_HEADS = "q", "k", "v", "k_cache", "v_cache"


@dataclass(frozen=True)
class Candidate:
    """A function that may be called.

    A candidate that is refused by its `check` is not imported: some versions of Numba lack PTX.

    Attributes
    ----------
    name : str
        Name of the function, and of its module.
    package : str
        Room of fa_numba with the module.
    why : str, default=""
        Why it is preferred to the candidates after it, for `which`.
    check : callable, default=None
        ``check(candidate, inputs, options)`` raises a `RefusedError` if the function cannot take
        these inputs, which are facts of arrays.
    most_queries : int, default=None
        With more queries the function is never the fastest.
    always : tuple of str, default=()
        Options the function lacks because it always behaves so.
    adapt : callable, default=None
        ``adapt(*arrays)`` returns the function's own positional arguments and more options, where
        they differ from those of the job.
    head_dims : HeadDims or None, default=one up to 256
        Those that the function takes; None if its inputs are not q, keys and values.
    after : dict of str to callable
        Options that the function lacks: ``after[name](*arrays, **options)``, called with the job's
        arrays and options, computes one further result.
    """

    name: str
    package: str
    why: str = ""
    check: Callable | None = None
    most_queries: int | None = None
    always: tuple = ()
    adapt: Callable | None = None
    head_dims: HeadDims | None = ONE_HEAD_DIM
    after: dict = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name that `which` gives: that of the job's namesake in fa_numba.cpu is cpu.name."""
        return f"cpu.{self.name}" if self.package == CPU else self.name

    @functools.cached_property
    def module(self):
        path = "cpu" if self.package == CPU else f"{self.package}.{self.name}"
        return importlib.import_module(f"fa_numba.{path}")

    @functools.cached_property
    def function(self):
        return getattr(self.module, self.name)

    @functools.cached_property
    def options(self):
        return {*inspect.signature(self.function).parameters, *self.always, *self.after}

    def refusal(self, inputs: tuple, options: dict) -> str | None:
        """Return why the function cannot take these inputs and options, or None."""
        if self.package == CPU and inputs[0].library != "numpy":
            return "takes NumPy arrays alone"
        if self.most_queries is not None and inputs.q.shape[1] > self.most_queries:
            return (
                f"splits the keys, for at most {self.most_queries} queries, got {inputs.q.shape[1]}"
            )
        of_heads = {x: array for x, array in inputs._asdict().items() if x in WITH_HEADS}
        try:
            if self.head_dims:
                self.head_dims.check(**of_heads)
            if self.check:
                self.check(self, inputs, options)
        except RefusedError as error:
            return str(error)
        missing = [x for x in options if x not in self.options]
        return f"{self.title} has no {', '.join(missing)}" if missing else None

    def __call__(self, *inputs, **options):
        further = [self.after[name](*inputs, **options) for name in options if name in self.after]
        left_out = {*self.always, *self.after}
        options = {name: x for name, x in options.items() if name not in left_out}
        if self.adapt:
            inputs, more = self.adapt(*inputs)
            options |= more
        results = self.function(*inputs, **options)
        return (*results, *further) if further else results


def on_cpu(name: str, head_dims: HeadDims | None = ANY_HEAD_DIMS) -> Candidate:
    """The job of this name compiled for the CPU, for NumPy arrays."""
    why = (
        "NumPy arrays run compiled for the CPU by Numba; the name of an algorithm, such as "
        "flash_attn_v2, runs its kernel on the CPU engine"
    )
    return Candidate(name, CPU, why=why, head_dims=head_dims)


def lesson(name: str, **more) -> Candidate:
    """A kernel of the lessons, the last resort of a job."""
    return Candidate(name, "kernels", why="takes any GPU, dtype and strides", **more)
