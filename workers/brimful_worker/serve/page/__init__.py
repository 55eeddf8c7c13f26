"""The page at ``/``: what the fleet does now and did in the last minutes, live. It never holds prompts."""
