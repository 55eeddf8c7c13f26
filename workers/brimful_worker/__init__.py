"""What runs in a brimful worker process: the pool, the sampler, admission, and the provider's side."""
