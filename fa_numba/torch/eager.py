"""Repeats a call outside of `torch.compile` without PyTorch's dispatcher, which takes far longer.

The dispatcher calls a registered operator of Python by way of two Python functions, one for
gradients and one for the GPU, and converts all arguments for each. A replay needs none of that. So
`remember` keeps, for a call that passed the checks and ran, a `Plan`: the replays of its forward
and backward pass. `repeat` finds it for a call with the same layouts and options, and runs it as
one node of PyTorch's autograd. All other calls go through the operator:

- while PyTorch traces, transforms or intercepts operators (`layouts.intercepted`);
- a tensor that is not a plain one in GPU memory (`layouts.is_plain`);
- a first call, and one that a replay refuses, because of an address or of the current GPU.
"""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import forward_ad

from fa_numba.runtime import plan_key
from fa_numba.runtime.replay import RefusedError, with_results
from fa_numba.torch import layouts, operators
from fa_numba.torch.autocast import autocast
from fa_numba.torch.seed import draw_seed

MAX_PLANS = 1024
NO_WINDOW = (-1, -1)

_plans = {}  # by options and layouts
_recent = {}  # of each choice of options: `layouts.with_recent`, the plans that were used last


def repeat(function, q, k, v, others, options, window_size=NO_WINDOW):
    """Return out as a function did before, or None if it has to run itself.

    Parameters
    ----------
    function : str
        Its name.
    q, k, v : objects
        Its arguments, unchecked.
    others : tuple
        The other arguments that are arrays and not None.
    options : tuple
        The other arguments.
    window_size : tuple
        Not among the options.
    """
    if torch.compiler.is_dynamo_compiling() or forward_ad._current_level >= 0:
        return None
    try:
        choice = _choice(function, options, window_size)
        plan = layouts.that_fits(_recent.get(choice, ()), q, k, v, *others)
        if plan is None:
            if layouts.intercepted() or any(x.requires_grad for x in others):
                return None
            given = q, k, v
            if torch.is_autocast_enabled(layouts.GPU):
                q, k, v = autocast(*given)
            plan = _plans.get((choice, layouts.of(q, k, v, *others)))
            if plan is None:
                return None
            if all(map(operator.is_, given, (q, k, v))):  # not cast
                recent = _recent.get(choice, ())
                _recent[choice] = layouts.with_recent(plan, recent, *given, *others)
    except (AttributeError, TypeError, RuntimeError):  # an argument that the checks will refuse
        return None
    return plan(q, k, v, others)


def remember(
    function, q, k, v, others, options, window_size, arguments, *, drops=False, transposed=False
):
    """Keep how to repeat a call that has just run, if that is possible.

    Parameters
    ----------
    function, q, k, v, others, options, window_size
        As for `repeat`; q, k, v as cast by autocast.
    arguments : callable
        Returns the operator and its arguments for (q, k, v, others, seed), tensors with the axes of
        the operator.
    drops : bool, default=False
        There is dropout.
    transposed : bool, default=False
        q, k, v and the results have the axes (batch, heads, seqlen, head_dim).
    """
    if layouts.intercepted() or not all(map(layouts.is_plain, (q, k, v, *others))):
        return
    if any(x.requires_grad for x in others):  # an error where PyTorch records gradients
        return
    try:
        choice = _choice(function, options, window_size)
        hash(choice)
    except TypeError:  # an option that cannot be compared, such as a list
        return
    plan = Plan(arguments, drops, transposed)
    if plan.find_forward(q, k, v, others):
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
            _recent.clear()
        _plans[choice, layouts.of(q, k, v, *others)] = plan


def _choice(function, options, window_size):
    """All but tensors; and autocast's dtype, because `fits` knows only whether autocast is on."""
    dtype = torch.get_autocast_dtype(layouts.GPU) if torch._C._is_any_autocast_enabled() else None
    deterministic = torch.are_deterministic_algorithms_enabled()
    choice = function, deterministic, dtype, *plan_key.of_options(options)
    if window_size is not NO_WINDOW:
        choice += plan_key.of_options(window_size)
    return choice


@dataclass(eq=False, slots=True)
class Backward:
    """A replay of a backward pass for the tensors ``dout, q, k, v, out, lse, *others``.

    Attributes
    ----------
    fits : callable
        As that of `Plan`, for all these tensors.
    replay : callable
        ``replay((dout, q, k, v, out, lse, *others), seed)`` returns the gradients.
    """

    fits: Callable
    replay: Callable


class Plan:
    """How to repeat a call with tensors of the same layouts, and its backward pass.

    Parameters
    ----------
    arguments, drops, transposed
        As for `remember`.

    Attributes
    ----------
    forward : callable
        A replay: ``forward((q, k, v, *others), seed)`` returns out and lse.
    with_gradients : callable
        ``with_gradients(q, k, v, *others)``, and the seed where there is dropout, returns out.
    backward : dict of tuple to Backward
        By the layouts of dout and of all saved tensors, which hooks may have copied.
    fits : callable
        ``fits(q, k, v, *others)`` says whether these tensors have the layouts of the plan, or
        perhaps not.
    recent : tuple of (callable, Backward)
        Those of `backward` that were used last, as of `layouts.with_recent`.
    """

    def __init__(self, arguments, drops, transposed):
        self.arguments, self.drops, self.transposed = arguments, drops, transposed
        self.forward, self.with_gradients, self.backward = None, None, {}
        self.fits, self.recent = layouts.never, ()

    def find_forward(self, q, k, v, others):
        """Find the replay of a call that has run; return whether there is one."""
        function, arguments = self.arguments(*self._ours(q, k, v), others, 0)
        if found := operators.replay_of(function, *arguments):
            self.forward = self._replay_with_axes(found, 1)
            self.with_gradients = _node(self, len(others))
        return found is not None

    def __call__(self, q, k, v, others):
        """Return out, with a node of autograd if a gradient is needed."""
        seed = draw_seed().item() if self.drops else None
        try:
            if self.drops and torch.cuda.is_current_stream_capturing():
                raise RefusedError
            if (q.requires_grad or k.requires_grad or v.requires_grad) and torch.is_grad_enabled():
                if self.drops:
                    return self.with_gradients(q, k, v, *others, seed)
                return self.with_gradients(q, k, v, *others)
            return self.forward((q, k, v, *others), seed)[0]
        except RefusedError:
            function, arguments = self.arguments(*self._ours(q, k, v), others, seed)
            out, _ = function(*arguments)
            return self._axes(out)

    def gradients(self, given, seed):
        """Return dq, dk, dv for ``given = dout, q, k, v, out, lse, *others``."""
        key = None
        if not (torch.is_grad_enabled() or torch.compiler.is_dynamo_compiling()):
            known = None
            if forward_ad._current_level < 0:
                known = layouts.that_fits(self.recent, *given)
            if known is None:
                known, key = self._find_backward(given)
            if known:
                try:
                    return known.replay(given, seed)
                except RefusedError:
                    key = None
        dout, q, k, v, out, lse, *others = given
        copies_dout = key is not None and dout.stride(-1) != 1  # a sum's gradient, for instance
        if copies_dout:
            dout = self._contiguous(dout)
        function, arguments = self.arguments(*self._ours(q, k, v), others, seed)
        gradients = operators.GRADIENTS[function]
        arguments = *self._ours(dout, out), lse, *arguments
        results = gradients(*arguments)
        if key and (found := operators.replay_of(gradients, *arguments)):
            replay = self._replay_with_axes(found, 3)
            if copies_dout:
                replay = self._copies_dout(replay)
            self.backward[key] = Backward(layouts.check_of(*given), replay)
        return self._ours(*results)

    def _find_backward(self, given):
        """Return the `Backward` for these tensors or None, and their key.

        Both are None where the operator has to be called.
        """
        if layouts.intercepted() or not layouts.is_plain(given[0]):
            return None, None
        key = layouts.of(*given)
        if known := self.backward.get(key):
            self.recent = layouts.with_recent(known, self.recent, *given)
        return known, key

    def _copies_dout(self, replay):
        """The replay, which takes a copy of dout, because its last axis has gaps."""

        def call(given, seed):
            return replay((self._contiguous(given[0]), *given[1:]), seed)

        return call

    def _contiguous(self, x):
        """A copy of a tensor, contiguous with the axes of the operator."""
        return self._axes(self._axes(x).contiguous())

    def _axes(self, x):
        """A tensor with the axes of the function in the place of those of the operator, or back."""
        return x.transpose(1, 2) if self.transposed else x

    def _ours(self, *tensors):
        return tuple(map(self._axes, tensors))

    def _replay_with_axes(self, replay, num_results):
        """The replay, with the axes of the function for its first results."""
        if not self.transposed:
            return replay

        def allocate(i, allocation):
            if i >= num_results:
                return allocation.allocate
            if allocation.num_bytes is None:  # not empty but zeros, for instance
                return lambda: allocation.allocate().transpose(1, 2)
            empty_strided, (shape, strides, *dtype) = (
                allocation.allocate.func,
                allocation.allocate.args,
            )
            swapped = [(x[0], x[2], x[1], *x[3:]) for x in (shape, strides)]
            return functools.partial(empty_strided, *swapped, *dtype)

        return with_results(replay, allocate)


def _node(plan, num_others):
    """Return `Plan.with_gradients`.

    A class for each plan: PyTorch takes microseconds for each argument and each attribute that a
    node of autograd has besides its tensors.
    """
    forward, gradients, drops = plan.forward, plan.gradients, plan.drops
    nones = (None,) * (num_others + drops)

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            seed = None
            if drops:
                *tensors, seed = tensors
                ctx.seed = seed
            out, lse = forward(tensors, seed)
            ctx.save_for_backward(*tensors[:3], out, lse, *tensors[3:])
            return out

        @staticmethod
        def backward(ctx, dout):
            found = gradients((dout, *ctx.saved_tensors), ctx.seed if drops else None)
            return *found, *nones

    # The engine calls `apply` of the node's own class, which looks for `backward` each time: 5 µs.
    Attention._backward_cls.apply = Attention.backward
    # Function.apply without its care for torch.func, which `layouts.intercepted` excludes: 2 µs.
    return super(torch.autograd.Function, Attention).apply
