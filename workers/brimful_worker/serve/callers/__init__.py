"""Who may ask, as one front door knows it."""
