"""HTTP to the provider: aiohttp's connections, and one exchange of request and answer on each at a time.

Imported by ``provider`` only.
"""
