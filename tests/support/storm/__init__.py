"""A storm of faults over a whole fleet, repeatable by its seed, with audits at its end.

``python -m support.storm --seconds 40 --seed 7`` (``make chaos MINUTES=10 SEED=7``) prints the schedule that the seed
draws, runs it against real workers, a real Valkey and a strict gateway, waits for calm, and audits what is left:

- :mod:`.schedule`: which fault happens when, and which requests are sent when. Pure.
- :mod:`.machines`: the fleet's parts (Valkey, workers, gateway), and what each fault does to them.
- :mod:`.singles`: single requests of every kind, malformed messages, and what became of each.
- :mod:`.runs`: ``brimful run`` processes that are killed, robbed of their output, and resumed.
- :mod:`.audits`: what must hold afterwards. A finding names the seed and the id.
"""
