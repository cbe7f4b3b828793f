"""The claims ledgers of lessons: a module per lesson, whose `ledger` returns rows for a table.

Every number in a row is computed or counted when the ledger is made, or read from
`benchmarks/results/`.
"""
