"""Wording that several rooms' messages share: counted nouns, and what is wrong with a setting.

Level 1. Imports nothing of brimful; every room may import it.
"""
