"""What graders ask of the engine's meter, of any kernel: who stores, and what is kept on the chip.

A trace names arrays by the kernel's parameters, and a learner may call those as they like: the
graders know them by their place among the arguments.
"""


def by_place(trace, names):
    """The traffic of a launch's arrays under the statement's names.

    Parameters
    ----------
    trace : simt.Trace
    names : str
        What the statement calls the arrays among the kernel's arguments, in order: ``"x y"``.

    Returns
    -------
    dict of str to GlobalTraffic
    """
    return dict(zip(names.split(), trace.arrays.values(), strict=False))


def expect_no_races(trace):
    """Fail with the first race of a launch."""
    others = f" (and {len(trace.races) - 1} more)" if len(trace.races) > 1 else ""
    assert not trace.races, f"{trace.races[0]}{others}"


def expect_chip_memory(trace, *, shared=0, local=0, allowed):
    """Fail where a launch keeps more on the chip than the statement allows.

    Parameters
    ----------
    trace : simt.Trace
    shared, local : int, default=0
        Bytes of shared memory of a thread block, and of local arrays of a thread, that are allowed.
    allowed : str
        What the statement allows, in words.
    """
    for kind, owner, got, most in (
        ("shared memory", "thread block", trace.shared_bytes, shared),
        ("local arrays", "thread", trace.local_bytes, local),
    ):
        enough = f"{most} are enough" if most else "none is needed"
        assert got <= most, f"a {owner} takes {got} bytes of {kind}, but {enough}: {allowed}"


def expect_stores_by(written, *, threads=None, blocks=None, why):
    """Fail unless that many threads, or thread blocks, store into the arrays.

    Parameters
    ----------
    written : dict of str to GlobalTraffic
        The arrays that are written, as of `by_place`.
    threads, blocks : int, optional
        How many must take part at least.
    why : str
        The rule of the statement.
    """
    for name, array in written.items():
        for kind, got, least in (
            ("threads", array.storing_threads, threads),
            ("thread blocks", array.storing_blocks, blocks),
        ):
            assert least is None or got >= least, (
                f"{name} is written by {got} of {least} {kind}: {why}"
            )
