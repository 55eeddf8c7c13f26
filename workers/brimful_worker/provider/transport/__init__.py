"""HTTP to the provider, on aiohttp's connector and parser: connections, and one exchange of request and answer.

Imported by ``provider`` only.
"""
