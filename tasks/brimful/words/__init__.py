"""Words of messages to users, which several rooms share: counted nouns, enumerations, cut texts, faults of settings.

Level 1. Imports nothing of brimful; every room may import it.
"""
