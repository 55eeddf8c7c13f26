"""The ways in which a driver sends nothing more: for good, or until it is resumed.

An inner room of ``dispatch``, whose driver uses it.
"""
