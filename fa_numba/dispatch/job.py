"""A job checks its arguments, chooses a candidate and calls it. `Choice` says which, and why."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fa_numba import checks
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.dispatch.candidates import CPU
from fa_numba.runtime import arrays, launching, plan_key, replay

JOBS = {}  # a Job by its name


@dataclass(frozen=True)
class Choice:
    """The function that a job calls for some arguments.

    Attributes
    ----------
    kernel : str
        Its name; "cpu.flash_attn" for a function of fa_numba.cpu.
    reason : str
    refused : dict of str to str
        The functions that cannot run for these arrays and options, and why.
    """

    kernel: str
    reason: str
    refused: dict

    def __str__(self):
        return "\n  ".join(
            [f"{self.kernel}: {self.reason}"]
            + [f"not {name}: {why}" for name, why in self.refused.items()]
        )


@dataclass(frozen=True)
class Job:
    """A job: the function that `job` decorates, with its check and candidates.

    Attributes
    ----------
    check : callable
        Takes the arguments of the job; checks them; returns facts of the arrays and the options
        that differ from their defaults.
    candidates : dict of str to Candidate
        By title, in order of preference.
    function : callable
        The job itself.
    not_launched : dict of dict
        For shapes, dtypes and options: candidates whose kernel the driver refused to launch, and
        its reason.
    """

    check: Callable
    candidates: dict
    function: Callable
    not_launched: dict = field(default_factory=dict)

    def choose(self, inputs, options) -> Choice:
        """The choice for these inputs, which are facts of arrays, with all refusals."""
        title, reason = self.pick(inputs, options)
        refused = self._refusals(inputs, options)
        return Choice(title, reason, {name: why for name, why in refused.items() if why})

    def pick(self, inputs, options) -> tuple:
        """Title of the candidate for these inputs, and the reason: see `fa_numba.dispatch`."""
        able = self._able(inputs, options)
        title = next(able, None)
        if title is None:
            name = self.function.__name__
            cpu = self.candidates.get(f"{CPU}.{name}")
            on_cpu = cpu is not None and options.keys() <= cpu.options
            checks.require_candidate(name, self._refusals(inputs, options), on_cpu)
        if self.candidates[title].package == CPU or _on_gpu(inputs):
            return title, self.candidates[title].why
        lessons = (x for x in (title, *able) if self.candidates[x].package == "kernels")
        return next(lessons, title), "on the CPU engine the shortest kernel is the fastest"

    def _able(self, inputs, options):
        """Titles of the candidates that can run, in order."""
        not_launched = self.not_launched.get(_layout(inputs, options), ())
        for title, candidate in self.candidates.items():
            if title not in not_launched and candidate.refusal(inputs, options) is None:
                yield title

    def _refusals(self, inputs, options):
        refused = {name: x.refusal(inputs, options) for name, x in self.candidates.items()}
        return refused | self.not_launched.get(_layout(inputs, options), {})

    def call(self, inputs, options):
        """Call the chosen candidate; where the driver cannot launch its kernel, the next one."""
        while True:
            title, _ = self.pick(inputs, options)
            try:
                return self.candidates[title](*(x.array for x in inputs), **options)
            except launching.LaunchRefusedError as error:
                refused = self.not_launched.setdefault(_layout(inputs, options), {})
                refused[title] = str(error)
                if all(self._refusals(inputs, options).values()):
                    raise
                warnings.warn(f"{title} cannot run, the next kernel does: {error}", stacklevel=2)
                if recording := replay.current():
                    recording.restart()


def _layout(inputs, options):
    """What a launch may depend on: all but the seed and the numbers in arrays."""
    named = [
        (name, x)
        for name in sorted(options.keys() - {"seed"})
        for x in (options[name] if type(options[name]) is tuple else (options[name],))
    ]  # those in a tuple one by one: mask_args and score_args have arrays
    names, values = zip(*named, strict=True) if named else ((), ())
    _, values = plan_key.of_arguments(lambda array: None, values)
    return tuple((x.shape, x.dtype) for x in inputs), names, values


def _on_gpu(inputs):
    return inputs[0].library != "numpy" and arrays.gpu_available()


def job(*candidates):
    """Decorate a function that checks a job's arguments: the result chooses a candidate, calls it.

    Parameters
    ----------
    *candidates : Candidate
        The fastest first, that of fa_numba.cpu before all, if there is one; the last can take
        everything.
    """
    by_title = {candidate.title: candidate for candidate in candidates}
    cpu = next((candidate for candidate in candidates if candidate.package == CPU), None)

    def decorate(check):
        @functools.wraps(check)
        def run(*args, **options):
            if cpu and args and type(args[0]) is np.ndarray and options.keys() <= cpu.options:
                return cpu.function(*args, **options)  # which makes the same checks
            inputs, options = check(*args, **options)
            return made.call(inputs, options)

        function = arrays.replayed(refuses_other_names(run))
        made = JOBS[check.__name__] = Job(check, by_title, function)
        return function

    return decorate
