"""``/v1/batches``: a batch is a run of the fleet's workers, started and watched by one front door of the machine.

All that is known of a batch is in its folder, so that any front door that shares it goes on with the batch of one that
died. The run is ``brimful run`` in a process of its own: packed, resumable, and each line sampled once.
"""
