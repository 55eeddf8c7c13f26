"""The front door's callers: who may ask, by token, in Redis so that all front doors of a fleet know them."""
