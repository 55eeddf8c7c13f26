"""The user and the host of this process."""

from __future__ import annotations

import getpass
import os
import socket


def user_name() -> str:
    """The name of the user who runs this process; its number, if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in a container
        return str(os.getuid())


def host_name() -> str:
    return socket.gethostname()


def who() -> str:
    """``user@host``"""
    return f"{user_name()}@{host_name()}"
