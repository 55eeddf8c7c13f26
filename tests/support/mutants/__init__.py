"""Mutation runs: small faults are put into a copy of the source, one at a time, and the tests must notice each.

``make mutants`` runs it; ``docs/mutants.md`` says how to read the report.

Why not a tool of PyPI: mutmut 3 has one test command for all modules, and names them by their path from the root, which
two source roots do not allow. cosmic-ray makes ten variants of each arithmetic operator and changes type annotations,
but drops no statement and changes no return value. Neither knows Lua, where the limits are kept, nor a sample by a
seed. Those need a runner of our own, and the faults themselves are two short modules.
"""
