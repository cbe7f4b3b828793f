"""The claims ledgers of lessons: a module per lesson, whose `ledger` returns rows for a table.

Every number in a row is computed or counted when the ledger is made, or read from
`benchmarks/results/`.
"""


def ledger_row(claim: str, number: str, verdict: str) -> dict:
    """A row of a ledger: a claim of a source, our number, and a verdict."""
    return {"claim": claim, "our number": number, "verdict": verdict}
