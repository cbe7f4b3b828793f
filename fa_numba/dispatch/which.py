"""`which` names the kernel that a job would run for some arguments, and does not run it."""

from fa_numba.checks import check_job
from fa_numba.checks.argument_names import refuses_other_names
from fa_numba.dispatch.job import JOBS, Choice


def which(job="flash_attn", *arguments, **options) -> Choice:
    """Say which kernel a job runs for these arguments, and why; nothing is run.

    Parameters
    ----------
    job : function or str, default="flash_attn"
        One of the jobs, `flash_decode` or "flash_decode". ``which(q, k, v)`` without it means
        `flash_attn`.
    *arguments, **options
        Those of the job.

    Returns
    -------
    Choice
        `print` it: the kernel, the reason, and why other kernels cannot run.

    Raises
    ------
    TypeError, ValueError
        As the job does.

    Examples
    --------
    >>> print(which(flash_decode, q, k_cache, v_cache, seq_lens, causal=True))  # doctest: +SKIP
    """
    if isinstance(job, str):
        found = check_job(job, JOBS)
    elif name := getattr(job, "__name__", None):
        found = check_job(name, JOBS, job)
    else:  # an array
        found, arguments = JOBS["flash_attn"], (job, *arguments)
    return found.choose(*refuses_other_names(found.check)(*arguments, **options))
