"""The checks of ``brimful doctor``. They only read, and spend no token and no start: the provider gets one GET.

Level 6. Imports ``state`` and the vocabulary; imported by ``cli``.
"""
