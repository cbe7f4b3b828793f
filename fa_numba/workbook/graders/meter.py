"""Checks by the engine's meter, for any kernel: HBM traffic, memory on the chip, races.

A trace names a kernel's arrays as the statement does, whatever the learner calls them: the judge
renames them (`grading.launches`).
"""

import re

from fa_numba.workbook.graders.causes import Wrong


def expect_no_races(trace):
    """Fail with the first race of a launch."""
    others = f" (and {len(trace.races) - 1} more)" if len(trace.races) > 1 else ""
    if trace.races:
        first = trace.races[0]
        raise Wrong(f"{first}{others}", causes=[race_cause(str(first), first.sites)])


def race_cause(text, sites):
    """The cause of a race in a sentence without threads and indices, which differ by the case."""
    lines = sorted({str(site.line) for site in sites}, key=lambda line: (len(line), line))
    places = f"lines {lines[0]} and {lines[-1]}" if len(lines) > 1 else f"line {lines[0]} itself"
    who = "threads of different thread blocks" if "nothing orders blocks" in text else "threads"
    if two_stores := re.search(r"race on ([\w.]+)\[.* both store different values", text):
        return (
            f"{who} store different values into one element of {two_stores[1]} in line {lines[0]}."
        )
    barrier = ", and no barrier lies between" if "no barrier lies between" in text else ""
    return f"{who} race in {places}{barrier}."


def expect_chip_memory(trace, *, shared=0, local=0, allowed):
    """Fail where a launch keeps more on the chip than the statement allows.

    `shared` bytes in shared memory of a thread block and `local` bytes in local arrays of a thread
    are allowed; `allowed` says so in words.
    """
    for kind, owner, got, most in (
        ("shared memory", "thread block", trace.shared_bytes, shared),
        ("local arrays", "thread", trace.local_bytes, local),
    ):
        enough = f"{most} are enough" if most else "none is needed"
        held = f" ({', '.join(trace.shared)})" if kind == "shared memory" and got else ""
        assert got <= most, f"a {owner} takes {got} bytes of {kind}{held}, but {enough}: {allowed}"


def expect_stores_by(written, *, threads=None, blocks=None, why):
    """Fail unless that many threads, or thread blocks, store into the arrays.

    `written` are the arrays of `trace.arrays` that are written, `why` is the rule of the statement.
    """
    for name, array in written.items():
        for kind, got, least in (
            ("threads", array.storing_threads, threads),
            ("thread blocks", array.storing_blocks, blocks),
        ):
            assert least is None or got >= least, (
                f"{name} is written by {got} of {least} {kind}: {why}"
            )


def expect_traffic(trace, wanted, *, less_is_fine=False):
    """Fail unless the HBM meter shows exactly the wanted elements.

    `wanted` is {(array, "loads" or "stores"): (elements, how they come about)}. With `less_is_fine`
    fewer loads than wanted are no fault.
    """
    none_first = sorted(wanted.items(), key=lambda item: item[1][0] > 0)
    for (name, kind), (elements, formula) in none_first:
        got = getattr(trace.arrays[name], kind)
        if got == elements or (less_is_fine and kind == "loads" and got < elements):
            continue
        assert elements, (
            f"{kind} of {name}: there must be none, {formula}, but the meter shows {got}"
        )
        times = f", {got / elements:.4g} times as many"
        cause = _traffic_cause(trace, kind, got, elements)
        raise Wrong(
            f"{kind} of {name}: {formula} = {elements} elements, but the meter shows {got}{times}. "
            + cause,
            causes=[cause],
            where=f"{kind} of {name}",
        )


def _traffic_cause(trace, kind, got, elements):
    if got < elements:
        return "Is part of it never touched, or does a tile not start at a multiple of its size?"
    for axis, threads in zip("xy", trace.block, strict=False):
        if threads > 1 and got == threads * elements:
            one = {
                "loads": "one thread loads an element, the others read it from shared memory",
                "stores": "one thread stores an element",
            }
            return f"That is once per threadIdx.{axis}: {one[kind]}."
    if kind == "stores":
        return "Is an element stored more than once, or by more than one thread?"
    return "Is a tile loaded again that is on the chip already, or a tile that is not needed?"


def expect_products(trace, needed, what, how, *, factor=1.3):
    """Fail where more products are computed than `factor` times those that `what` takes.

    `how` says in words how to do with so few.
    """
    done = trace.flops.by_kind
    got = done.get("fma", 0) + done.get("mul", 0)
    assert got <= factor * needed, (
        f"{what} {needed} multiplications, the meter shows {got}: thread {how}"
    )
