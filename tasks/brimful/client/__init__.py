"""The Python client for services: ``Fleet`` and ``AsyncFleet``.

Level 8, beside ``run``; neither imports the other. Imports ``dispatch`` and what lies below it.
"""
