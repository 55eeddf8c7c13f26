"""The entries of runs in Redis: what a run says of itself while it is under way, and what an operator asks of it.

An inner room of ``state``. ``run`` writes an entry through ``dispatch``, with the command that states the run's weight;
``cli`` reads it.
"""
