"""A storm over the limits: real admission processes, a real Valkey, and a ledger outside of both, repeatable by seed.

``python -m support.limits_storm --seconds 60 --seed 7`` (``make chaos STORM=limits_storm MINUTES=1 SEED=7``) runs the
faults that the seed draws, waits for calm, and compares the ledger with the limits that were in force:

- :mod:`.schedule`: which fault happens when. Pure; a shorter storm is the beginning of a longer one of the same seed.
- :mod:`.processes`: processes that hold slots, each with its own way to Redis, which is cut, frozen or slowed down.
- :mod:`.server`: the Valkey that is killed, stopped, flushed, robbed of keys, or replaced by its stale replica.
- :mod:`.audit`: which limits an arrival had to keep, and whether it did. Pure.
- :mod:`.engine`: the storm itself.
"""
