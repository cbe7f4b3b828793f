"""Several answers to one prompt, with forks and reference counts.

Parallel sampling and beam search differ only in the moment at which sequences fork. Neither knows
about pages: forks share full pages, and the first fork that writes to the partly filled last page
copies it.

Paper: Kwon et al. 2023, PagedAttention, arXiv:2309.06180, section 4.4.
"""

from fa_numba import checks


def samples(pool, seq, number):
    """Fork a sequence for parallel sampling.

    Parameters
    ----------
    pool : PagePool
    seq : int
        The prompt; the first of the samples.
    number : int

    Returns
    -------
    list of int
        `number` sequences with the pages of the prompt.
    """
    checks.check_seq(seq, pool.sequences)
    number = checks.check_number(number)
    return [seq, *(pool.fork(seq) for _ in range(number - 1))]


def beams(pool, seqs, parents):
    """The beams of the next step of a beam search.

    Parameters
    ----------
    pool : PagePool
    seqs : sequence of int
        The beams so far; all of them are freed.
    parents : sequence of int
        For each new beam, the index in `seqs` of the beam that it continues. A good beam has many
        children. A bad beam has none: those of its pages that no other beam shares become free.

    Returns
    -------
    list of int
        One sequence for each of `parents`, to append its token to.
    """
    seqs, parents = checks.check_beams(seqs, parents, pool.sequences)
    children = [pool.fork(seqs[parent]) for parent in parents]
    for seq in seqs:
        pool.free(seq)
    return children
